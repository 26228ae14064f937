"""A benchmark that runs again replaces its own results on the page, and no other ones."""

from dataclasses import replace
from datetime import date

from tests.benchmarks.__main__ import ABOUTS, PAGE
from tests.benchmarks.figures import Result, Row, at_least_ratio
from tests.benchmarks.machine import Machine
from tests.benchmarks.page import Chapter, Page, read_page, write_page

ROWS = (
    Row("jobs, settled", 50, "/s", 100, at_least_ratio(0.25)),
    Row("jobs, read", 10, "/s", 100, at_least_ratio(0.25)),
    Row("not demanded", 2, "/s"),
)
RESULT = Result(ROWS)
CHAPTER = Chapter("drain", RESULT, Machine("Two cores", "Redis 8", "nothing else ran"), date(2026, 11, 23), "3.11")
OTHER = {"drain": "Title.\n\nText.", "idle": "Idle\n\nWaits."}


def test_the_page_has_the_last_result_of_each_benchmark() -> None:
    other = replace(CHAPTER, name="idle", python="3.13")
    page = write_page(Page().renewed([replace(CHAPTER, python="3.12"), CHAPTER, other]), OTHER)
    assert [page.count(text) for text in ("## Title", "## Python 3.11", "## Python 3.12", "| jobs, settled |")] == [
        1, 1, 0, 2,
    ]  # fmt: skip
    assert page.count("- 1 of 2 demands are met. Not met: jobs, read.") == 2
    assert page.index("## Python 3.11") < page.index("## Python 3.13")


def test_what_is_written_is_read_again() -> None:
    page = Page().renewed([CHAPTER, replace(CHAPTER, name="idle", result=Result(()))])
    assert read_page(write_page(page, OTHER), OTHER) == page


def test_a_benchmark_that_is_run_again_changes_its_own_part_alone() -> None:
    before = Page().renewed([CHAPTER, replace(CHAPTER, name="idle")])
    again = replace(CHAPTER, result=Result(ROWS[:1]), machine=Machine("Four cores", "Redis 9", "quiet"))
    after = read_page(write_page(before, OTHER), OTHER).renewed([again])
    changed = [(old, new) for old, new in zip(before.told, after.told, strict=True) if old != new]
    assert [(old.name, old.python, new.demands) for old, new in changed] == [
        ("drain", "3.11", (("jobs, settled", True),))
    ]
    assert dict(after.machines) == {"3.11": ("Four cores", "Redis 9")}


def test_a_benchmark_that_is_no_more_is_left_out() -> None:
    page = write_page(Page().renewed([CHAPTER]), OTHER)
    assert read_page(page, {"idle": OTHER["idle"]}).told == ()


def test_all_that_stands_on_the_page_in_docs_is_kept() -> None:
    text = PAGE.read_text(encoding="utf-8")
    page = read_page(text, ABOUTS)
    assert [one.text in text for one in page.told] == [True] * text.count("\nMeasured on ")
    assert read_page(write_page(page, ABOUTS), ABOUTS) == page
