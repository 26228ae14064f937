"""Ratios are kept release by release, and a release that is measured again has its last ones."""

from dataclasses import replace
from datetime import date

from tests.benchmarks.figures import Result, Row, at_least_ratio, at_most
from tests.benchmarks.history import Measured, chart, measured, merged, ratios_of, read, written
from tests.benchmarks.machine import Machine
from tests.benchmarks.page import Chapter

ROWS = (
    Row("jobs, settled", 50, "/s", 100, at_least_ratio(0.25)),
    Row("requests", 2, "/s", 1, at_most(3)),
    Row("not measured beside it", 2, "/s", demand=at_least_ratio(1)),
)
CHAPTER = Chapter("drain", Result(ROWS), Machine("", "", ""), date(2026, 11, 23), "3.11")
ONE = Measured("0.9.0", "3.11", "2026-11-23", "jobs, settled", 0.5, 0.25)


def test_what_is_kept_of_a_run_is_each_ratio_that_is_demanded() -> None:
    assert measured([CHAPTER], "0.9.0") == [ONE]


def test_a_release_that_is_measured_again_on_one_python_keeps_what_others_found() -> None:
    older, other, again = replace(ONE, release="0.8.0"), replace(ONE, python="3.13"), replace(ONE, ratio=0.7)
    assert merged([older, ONE, other], [again]) == [older, other, again]


def test_what_is_written_is_read_again_and_releases_are_in_their_order() -> None:
    later = replace(ONE, release="0.10.0")
    assert read(written([later, ONE])) == [ONE, later]


def test_the_ratios_of_a_release_have_a_column_for_each_python() -> None:
    former, other = replace(ONE, release="0.8.0"), replace(ONE, python="3.13", ratio=0.7)
    assert ratios_of("0.9.0", [former, ONE, other, replace(other, what="jobs, read")]).splitlines() == [
        "| ratio in 0.9.0 | Python 3.11 | Python 3.13 | demand |",
        "| --- | ---: | ---: | ---: |",
        "| jobs, read | - | 0.70 | 0.25 |",
        "| jobs, settled | 0.50 | 0.70 | 0.25 |",
    ]


def test_the_chart_has_a_line_for_each_python_over_all_releases() -> None:
    drawn = chart([ONE, replace(ONE, release="0.10.0"), replace(ONE, python="3.13"), replace(ONE, what="other")])
    assert [drawn.count(text) for text in (">Python 3.11<", ">Python 3.13<", ">0.10.0<")] == [2, 1, 1]
