"""The report as a whole, on a generated lake."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from reaper.pipeline.analysis.answers import LakeAnswers
from reaper.pipeline.analysis.asking import QUESTIONS, LakeQueries, read_tables
from reaper.pipeline.analysis.scope import CLOCKS_DIFFER, Scope
from reaper.pipeline.cli import pipeline
from reaper.pipeline.report import words
from reaper.pipeline.report.findings import find
from reaper.pipeline.report.page import write_page
from reaper.pipeline.report.reading import add_advice
from tests.docs.json_page import check
from tests.pipeline import stories
from tests.pipeline.conftest import Generated
from tests.pipeline.questions import ask
from tests.support.processes import Processes


@pytest.fixture(scope="module")
def lake(generated: Generated) -> str:
    return str(generated.path)


@dataclass(frozen=True)
class Reported:
    """The page that the command has written."""

    page: str
    figures: Any


@pytest.fixture(scope="module")
def reported(lake: str, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """Run the command on the whole lake, in the session of the tests."""
    folder = tmp_path_factory.mktemp("written")
    page = folder / "report.html"
    done = CliRunner().invoke(pipeline, ["report", "--lake", lake, "--output", str(page), "-o", "json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    check("reaper pipeline report", figures)
    return Reported(page.read_text(), figures)


def test_no_question_about_all_events_aggregates_strings_or_runs_python(
    spark: SparkSession, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark sorts what it aggregates strings of. The few jobs and events that have a story may be sorted."""
    asker = LakeQueries(spark, read_tables(spark, lake), Scope(datetime.now(UTC), groups=("billing",)), embedded=True)
    asker.ask(lambda _: None)
    heavy = [("views", "story"), ("views", "activity"), ("questions", "durations"), ("questions", "executions")]
    rest = [
        ("views", "delivery"),
        *(("questions", name) for name in QUESTIONS if name not in ("durations", "executions")),
    ]
    capsys.readouterr()
    for folder, name in heavy:
        asker.query(folder, name).explain()
    plans = capsys.readouterr().out
    assert plans.count("== Physical Plan ==") == len(heavy)
    assert "HashAggregate" in plans
    assert "SortAggregate" not in plans
    for folder, name in rest:
        asker.query(folder, name).explain()
    assert "Python" not in plans + capsys.readouterr().out, "no user-defined functions"


def test_every_question_is_answered_in_page_and_figures(reported: Reported) -> None:
    figures, page = reported.figures, reported.page
    empty = {name for name, rows in figures["tables"].items() if not rows}
    assert empty <= {"malformed", "skewed", "duplicates", "duplicate_jobs", "lost_payloads"}
    assert figures["events"] == sum(row["events"] for row in figures["tables"]["extents"])
    assert figures["advice"]["groups"]
    assert "were recovered from live workers, which were silent for longer than the timeout" in page
    assert "reaper dead-letters redrive" in page


def test_the_page_has_charts_and_unique_ids_and_is_small(reported: Reported) -> None:
    ids = re.findall(r'\bid="([^"]+)"', reported.page)
    assert len(ids) == len(set(ids))
    assert reported.page.count("<svg") == 3 + 3 + 2
    assert len(reported.page.encode()) < 1_000_000


def test_the_scope_cuts_groups_and_time(spark: SparkSession, lake: str, generated: Generated) -> None:
    def asked(now: datetime, *groups: str, since: datetime | None = None) -> LakeAnswers:
        asker = LakeQueries(spark, read_tables(spark, lake), Scope(now, since, groups=groups), embedded=True)
        return asker.ask(lambda _: None, ("activity_counts", "misdated", "dead_letter_clusters"))

    everything = asked(LATER)
    (middle_ms,) = spark.sql("select percentile_approx(at_ms, 0.5) from event").first() or (0,)
    middle = words.moment(middle_ms)
    some = asked(LATER, "mail/sender", "billing", since=middle)
    assert some.first_ms >= middle_ms
    assert {row["group"] for row in some.answers["activity_counts"]} - {None} == {"billing", "sender"}
    assert some.events < everything.events / 2
    assert {row["group"] for row in some.answers["dead_letter_clusters"]} <= {"billing", "sender"}
    assert asked(LATER, "orders/sender").answers["activity_counts"] == []
    until = asked(middle - CLOCKS_DIFFER)
    misdated = sum(row["events"] for row in until.answers["misdated"])
    assert until.events + misdated == everything.events
    assert until.last_ms < middle_ms
    assert misdated > generated.events / 3


LATER = datetime(2030, 1, 1, tzinfo=UTC)
NOW = datetime(2025, 12, 31, tzinfo=UTC)
NOON_MS = 1_767_182_400_000
"""Half a day later, which is as late as an event can be, to half a day."""


_TIMES = [(2**62, 3_000), (3_001, -1), (3_001, 2**62), (-1, 3_000), (9, 9)]
"""Idle times and visibility timeouts, of which the last ones can be."""


def test_what_nobody_can_place_stands_in_no_figure_and_is_counted(spark: SparkSession) -> None:
    """Events of no group among those of one, of no year, of no holder, and ages that are none."""
    done = stories.about(str(NOON_MS), 1)
    rows = [
        stories.acked(NOON_MS + 200, 100, done, wait=5, visibility_ms=None),
        *(stories.acked(NOON_MS + 300, 100, done | {"job": "2-0", "group": None}, wait=5) for _ in range(2)),
        stories.acked(5, 1, stories.about("1", 1)),
        stories.acked(NOON_MS + 86_400_000, 1, stories.about(str(NOON_MS), 1)),
        stories.event("rejected", NOON_MS, "3-0", group=None, verb="ack"),
        stories.event("recovered", NOON_MS, "4-0", group=None, idle_ms=3_001, visibility_ms=3_000, token=1),
        stories.event("recovered", NOON_MS, "5-0", idle_ms=3_001, visibility_ms=3_000, token=1, entry="5-0"),
        *(
            stories.recovered(NOON_MS + 50, idle, stories.about(str(NOON_MS + at), 1), visibility_ms=visibility)
            for at, (idle, visibility) in enumerate(_TIMES, 7)
        ),
        *(
            stories.recovered(
                NOON_MS + at, 3_001, stories.about(str(NOON_MS), at) | {"consumer": "foreign"}, visibility_ms=None
            )
            for at in (60, 61)
        ),
        stories.event("recovered", NOON_MS, group=None, token=1),
        stories.event("fault_injected", NOON_MS, stream=stories.NAMESPACE_JOURNAL, group=None, kind="poison"),
        stories.event("teleported", NOON_MS, "6-0", group=None),
    ]
    letters = [
        stories.event("", NOON_MS, source_stream=stream, group=group)
        for stream in ("orders", None)
        for group in ("billing", None)
    ]
    scope = Scope(NOW)
    asked = ask(spark, scope=scope, events=rows, dead_letters=letters)
    findings = find(asked, {"lake": "lake", "made_at": "now", **scope.as_json()})
    add_advice(findings)
    page = write_page(findings)

    told = findings.tables
    assert {(row["what"], row["events"]) for row in told["skewed"]} == {
        ("instant", 2),
        ("group", 5),
        ("duration", 3),
    }
    overshoots = [row for row in told["recovery_times"] if row["measure"] == "overshoot"]
    assert sorted((row["n"], row["max"]) for row in overshoots) == [(1, 0), (1, 1)]
    assert {row["group"] for name, found in told.items() for row in found if "group" in row} == {stories.GROUP}
    assert told["duplicates"] == told["late_writes"] == told["terms"] == []
    assert [row["n"] for row in told["dead_letter_clusters"]] == [1]
    assert {row["ms"] for row in told["executions"] if row["kind"] == "in_force"} == {9, 3_000}
    assert len(told["unsettled_jobs"]) == 6
    assert "2 events with a time before 2018" in page


@pytest.mark.processes
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--lake", "/nowhere/lake"), "error: there is no lake at /nowhere/lake"),
        (("--since", "noon"), "error: 'noon' is not a time"),
    ],
)
async def test_what_cannot_be_reported_is_rejected_in_a_sentence(
    processes: Processes, options: tuple[str, ...], sentence: str
) -> None:
    command = processes.python("-m", "reaper", "pipeline", "report", *options)
    assert await command.wait() == 2
    assert sentence in command.output
    assert "Traceback" not in command.output


@pytest.mark.processes
@pytest.mark.anyio
async def test_a_missing_extra_is_named_in_a_sentence(processes: Processes) -> None:
    hidden = (
        "import sys; sys.modules['matplotlib'] = None; from reaper.cli.main import main; main(['pipeline', 'report'])"
    )
    command = processes.python("-c", hidden)
    assert await command.wait() == 2
    assert command.output.strip().endswith("Run pip install '.[report]' in your clone.")
