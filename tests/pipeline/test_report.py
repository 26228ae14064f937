"""The report as a whole, on a generated lake."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.report.findings import Findings
from reaper.pipeline.report.page import write_page
from reaper.pipeline.report.queries import questions, shelf
from reaper.pipeline.report.reading import read_report, read_tables
from reaper.pipeline.report.scope import Scope
from reaper.pipeline.synthetic import generate_lake
from tests.support.processes import Processes

EVENTS = 8_000
NOW = datetime(2026, 11, 20, 15, tzinfo=UTC)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "lake"
    generate_lake(spark, path, events=EVENTS)
    return str(path)


@pytest.fixture(scope="module")
def findings(spark: SparkSession, lake: str) -> Findings:
    return read_report(spark, lake, Scope(), NOW, lambda _: None)


def test_no_question_sorts_to_aggregate(spark: SparkSession, lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    with shelf() as kept:
        asked = questions(read_tables(spark, lake, Scope(groups=("billing",))), 60_000, kept.keep)
        capsys.readouterr()
        for question in asked.values():
            question.explain(extended=True)
    plans = capsys.readouterr().out
    assert plans.count("== Physical Plan ==") == len(asked)
    assert "HashAggregate" in plans
    assert "SortAggregate" not in plans
    assert "Python" not in plans, "no user-defined functions"


def test_all_parts_are_told_of_and_make_one_page(findings: Findings) -> None:
    empty = {name for name, rows in findings.tables.items() if not rows}
    assert empty <= {"malformed", "duplicates", "duplicate_jobs", "silence_bins", "lost_payloads"}
    assert findings.about["events"] == sum(row["events"] for row in findings.tables["extents"])
    assert "visibility_timeout = " in findings.settings
    page = write_page(findings)
    assert len(page.encode()) < 1_000_000
    assert page.count("<svg") == 6
    assert len(set(re.findall(r'\bid="([^"]+)"', page))) == len(re.findall(r'\bid="[^"]+"', page)), "IDs are unique"
    assert json.loads(json.dumps(findings.as_json(), default=str))["tables"].keys() == findings.tables.keys()


def test_the_scope_cuts_groups_and_time(spark: SparkSession, lake: str, findings: Findings) -> None:
    middle = datetime.fromtimestamp((findings.about["first_ms"] + findings.about["last_ms"]) // 2000, UTC)
    tables = read_tables(spark, lake, Scope(since=middle, groups=("mail/sender", "billing")))
    (counts,) = tables.events.selectExpr(
        "count_if(at < '%s') early" % middle.isoformat(),  # noqa: UP031
        "count_if(`group` not in ('billing', 'sender')) others",
        "count_if(`group` = 'sender') mails",
        "count_if(event like 'lease%') leases",
    ).collect()
    assert (counts.early, counts.others) == (0, 0)
    assert 0 < counts.mails < EVENTS / 2
    assert {row.group for row in tables.dead_letters.collect()} <= {"billing", "sender"}
    none = read_tables(spark, lake, Scope(groups=("orders/sender",))).events
    assert none.where("`group` is not null").isEmpty()


@pytest.mark.processes
@pytest.mark.anyio
async def test_the_command_writes_page_and_json(processes: Processes, lake: str, tmp_path: Path) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "report.json"
    options = ("--lake", lake, "--output", str(page), "--json", str(figures), "--group", "billing", "--heap", "1g")
    command = processes.python("-m", "reaper", "pipeline", "report", *options, "--master", "local[2]")
    assert await command.wait(240) == 0, command.output
    told = json.loads(figures.read_text())
    assert told["groups"] == ["billing"]
    assert f"{told['events']:,} events: {page}" in command.output
    assert "Recovery report" in page.read_text()


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
    assert await command.wait(60) == 2
    assert sentence in command.output
    assert "Traceback" not in command.output


@pytest.mark.processes
@pytest.mark.anyio
async def test_a_missing_extra_is_named_in_a_sentence(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('hidden by the test')")
    command = processes.python("-m", "reaper", "pipeline", "report", env={"PYTHONPATH": _with(tmp_path)})
    assert await command.wait(60) == 2
    assert command.output.strip().endswith("pip install 'stream-reaper[report]'.")


def _with(folder: Path) -> str:
    return f"{folder}:{Path(__file__).parents[2]}"
