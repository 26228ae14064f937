"""The report as a whole, on a generated lake."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from reaper.pipeline.analysis.activity import Extent
from reaper.pipeline.cli import pipeline
from reaper.pipeline.report import words
from reaper.pipeline.report.queries import questions, shelf
from reaper.pipeline.report.reading import read_tables, tune
from reaper.pipeline.report.scope import Scope
from tests.docs.json_page import check
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
        asked = dict(questions(tables, lambda: Extent(0, 60_000, 1_000), kept.keep, threads.submit))
        capsys.readouterr()
        for question in asked.values():
            question.explain()
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
    assert until.events.count() + until.ahead.count() == everything.count()
    assert until.ahead.where(f"unix_millis(at) < {middle_ms}").isEmpty()
    assert until.ahead.count() > generated.events / 3
    none = read_tables(spark, lake, Scope(groups=("orders/sender",))).events
    assert none.where("`group` is not null").isEmpty()


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
    assert command.output.strip().endswith("pip install 'stream-reaper[report]'.")
