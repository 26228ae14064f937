"""The report as a whole, on a generated lake."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.advice.model import Weights
from reaper.pipeline.analysis.activity import Extent
from reaper.pipeline.cli import pipeline
from reaper.pipeline.lake.schema import DEAD_LETTERS
from reaper.pipeline.report import words
from reaper.pipeline.report.findings import ask
from reaper.pipeline.report.page import write_page
from reaper.pipeline.report.queries import Tables, questions, shelf
from reaper.pipeline.report.reading import add_advice, read_tables, tune
from reaper.pipeline.report.scope import Scope
from tests.docs.json_page import check
from tests.pipeline import stories
from tests.pipeline.conftest import Generated
from tests.support.processes import Processes


@pytest.fixture(scope="module")
def lake(generated: Generated) -> str:
    return str(generated.path)


@dataclass(frozen=True)
class Reported:
    """What the command has written."""

    page: str
    figures: Any
    output: str


@pytest.fixture(scope="module")
def reported(lake: str, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """Run the command on the whole lake, in the session of the tests."""
    folder = tmp_path_factory.mktemp("written")
    page, figures = folder / "report.html", folder / "report.json"
    options = ["--lake", lake, "--output", str(page), "--json", str(figures)]
    done = CliRunner().invoke(pipeline, ["report", *options])
    assert done.exit_code == 0, done.output
    check("reaper pipeline report", json.loads(figures.read_text()))
    return Reported(page.read_text(), json.loads(figures.read_text()), done.output)


def test_no_question_sorts_to_aggregate(spark: SparkSession, lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    tune(spark, embedded=False)
    with shelf() as kept, ThreadPoolExecutor(1) as threads:
        tables = read_tables(spark, lake, Scope(groups=("billing",)))
        asked = list(questions(tables, lambda: Extent(0, 60_000, 1_000), kept.keep, threads.submit))
        capsys.readouterr()
        for question in asked:
            question.answer.explain()
    plans = capsys.readouterr().out
    assert plans.count("== Physical Plan ==") == len(asked)
    assert "HashAggregate" in plans
    assert "SortAggregate" not in plans
    assert "Python" not in plans, "no user-defined functions"


def test_every_question_is_answered_in_page_and_figures(reported: Reported) -> None:
    figures, page = reported.figures, reported.page
    empty = {name for name, rows in figures["tables"].items() if not rows}
    assert empty <= {"malformed", "skewed", "duplicates", "duplicate_jobs", "silence_bins", "lost_payloads"}
    assert figures["events"] == sum(row["events"] for row in figures["tables"]["extents"])
    assert f"{figures['events']:,} events: " in reported.output
    assert figures["advice"]["groups"]
    assert "visibility_timeout = " in page
    assert "reaper dead-letters redrive" in page


def test_the_page_has_charts_and_unique_ids_and_is_small(reported: Reported) -> None:
    ids = re.findall(r'\bid="([^"]+)"', reported.page)
    assert len(ids) == len(set(ids))
    assert reported.page.count("<svg") == 6
    assert len(reported.page.encode()) < 1_000_000


def test_the_scope_cuts_groups_and_time(spark: SparkSession, lake: str, generated: Generated) -> None:
    everything = read_tables(spark, lake, Scope()).events
    (middle_ms,) = everything.selectExpr("percentile_approx(unix_millis(at), 0.5)").first() or (0,)
    tables = read_tables(spark, lake, Scope(since=words.moment(middle_ms), groups=("mail/sender", "billing")))
    (counts,) = tables.events.selectExpr(
        f"count_if(unix_millis(at) < {middle_ms}) early",
        "count_if(`group` not in ('billing', 'sender')) others",
        "count_if(`group` = 'sender') mails",
    ).collect()
    assert (counts.early, counts.others) == (0, 0)
    assert 0 < counts.mails < generated.events / 2
    assert {row.group for row in tables.dead_letters.collect()} <= {"billing", "sender"}
    until = read_tables(spark, lake, Scope(latest=words.moment(middle_ms)))
    assert until.events.count() + until.misdated.count() == everything.count()
    assert until.misdated.where(f"unix_millis(at) < {middle_ms}").isEmpty()
    assert until.misdated.count() > generated.events / 3
    none = read_tables(spark, lake, Scope(groups=("orders/sender",))).events
    assert none.where("`group` is not null").isEmpty()


@pytest.mark.parametrize(
    ("name", "found"),
    [("a/b/c", {("a/b", "c"), ("a", "b/c")}), ("b/c", {("a", "b/c"), ("b", "c")}), ("c", {("a/b", "c"), ("b", "c")})],
)
def test_groups_are_chosen_as_they_are_written(spark: SparkSession, name: str, found: set[tuple[str, str]]) -> None:
    pairs = [("a/b", "c"), ("a", "b/c"), ("b", "c"), ("b", "d")]
    rows = [
        stories.event("acked", NOON_MS, "1-0", stream=f"{{{stream}}}:journal", group=group) for stream, group in pairs
    ]
    chosen = Scope(groups=(name,)).of_events(stories.frame(spark, rows))
    assert {(row.stream[1 : -len("}:journal")], row.group) for row in chosen.collect()} == found


LATEST = datetime(2026, 1, 1, tzinfo=UTC)
NOON_MS = 1_767_182_400_000
"""Half a day earlier."""


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
        stories.event("refused", NOON_MS, "3-0", group=None, verb="ack"),
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
        stories.event("scanned", NOON_MS, group=None, token=1, extra='{"gone_ages":[[1,2,3]]}'),
        stories.event("scanned", NOON_MS, token=1, extra='{"gone_ages":[[1,2],[],[-1,2,3],[1,2,-3],null,[16,32,7]]}'),
        stories.event("scanned", NOON_MS, token=1, extra='{"gone_ages":"none"}'),
        stories.event("lease_acquired", NOON_MS, stream=stories.NAMESPACE_JOURNAL, token=1),
        stories.event("teleported", NOON_MS, "6-0", group=None),
    ]
    letters = spark.createDataFrame(
        [(stream, group) for stream in ("orders", None) for group in ("billing", None)],
        "source_stream string, group string",
    )
    others = [field for field in DEAD_LETTERS if field.name not in letters.columns]
    unfilled = {field.name: F.lit(None).cast(field.dataType) for field in others}
    scope = Scope(latest=LATEST)
    events = stories.frame(spark, rows)
    malformed = spark.createDataFrame([], "stream string, reason string")
    with shelf() as kept:
        tables = Tables(scope.of_events(events), letters.withColumns(unfilled), malformed, scope.misdated(events))
        findings = ask(tables, {"lake": "lake", "made_at": "now", **scope.as_json()}, kept, lambda _: None)
    add_advice(findings, Weights())
    page = write_page(findings)

    told = findings.tables
    assert findings.about["unanswered"] == {}
    assert {(row["what"], row["events"]) for row in told["skewed"]} == {
        ("instant", 2),
        ("group", 5),
        ("duration", 3),
    }
    overshoots = [row for row in told["recovery_times"] if row["measure"] == "overshoot"]
    assert sorted((row["n"], row["max"]) for row in overshoots) == [(1, 0), (1, 1)]
    assert {row["group"] for name, found in told.items() for row in found if "group" in row} == {stories.GROUP}
    assert told["duplicates"] == told["refused_writes"] == told["terms"] == []
    assert [(row["at_least_ms"], row["n"]) for row in told["scanned_ages"]] == [(16, 7)]
    assert [row["n"] for row in told["dead_letter_clusters"]] == [1]
    assert {row["visibility_ms"] for row in told["timeouts_in_force"]} == {9, 3_000}
    assert {row["visibility_ms"] for row in told["stall_counts"]} == {9, 3_000}
    assert len(told["unsettled_jobs"]) == 6
    assert "2 events that claim to be from before 2018" in page


@pytest.mark.processes
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--lake", "/nowhere/lake"), "error: there is no lake at /nowhere/lake"),
        (("--since", "noon"), "error: 'noon' is no time"),
    ],
)
async def test_what_cannot_be_reported_is_refused_in_a_sentence(
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
    assert command.output.strip().endswith("run pip install '.[report]' in your clone.")
