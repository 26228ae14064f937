"""All analyses together on a real drill's journal, against a second computation in plain Python."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.analysis.asking import LakeQueries
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.report.findings import Findings, find
from tests.pipeline import drilled, reference, stories
from tests.pipeline.drilled import Drilled
from tests.pipeline.questions import ask
from tests.pipeline.reference import Told
from tests.support.servers import RedisServer, started_server

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def redis_server(binary: Path) -> Iterator[RedisServer]:
    with started_server(binary) as server:
        yield server


@pytest.fixture(scope="module")
def drill(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Drilled:
    return anyio.run(drilled.take_down, redis_server, tmp_path_factory.mktemp("drill"))


@pytest.fixture(scope="module")
def told(drill: Drilled) -> list[Told]:
    return [
        event for name, entries in drill.journals.items() for entry in entries for event in reference.read(name, *entry)
    ]


@pytest.fixture(scope="module")
def findings(spark: SparkSession, drill: Drilled, redis_server: RedisServer) -> Findings:
    assert drill.journals
    tables = drilled.read_back(spark, redis_server)
    return find(LakeQueries(spark, tables, Scope(datetime.now(UTC)), embedded=True).ask(lambda _: None), {})


def started_again(spark: SparkSession) -> set[tuple[str, str, int, int, str]]:
    rows = spark.sql("select grp, job, start, started_ms, cause from delivery where cause is not null").collect()
    return {tuple(row) for row in rows}


def test_the_drill_was_worth_the_trouble(told: list[Told], findings: Findings) -> None:
    names = Counter(each.event for each in told)
    assert names["acked"] > 50
    assert names["recovered"] > 3
    assert names["dead_lettered"] == 1, "the poison job"
    assert names["lease_taken"] >= 1
    assert findings.about["events"] == len(told)
    assert findings.tables["malformed"] == []


def test_second_starts_and_duplicates_are_those_of_the_reference(
    spark: SparkSession, told: list[Told], findings: Findings
) -> None:
    assert started_again(spark) == reference.second_starts(told)
    twice = {(row["group"], row["job"], row["times"]) for row in findings.tables["duplicate_jobs"]}
    assert twice == reference.duplicates(told)


def test_recovery_times_are_those_of_the_reference(told: list[Told], findings: Findings) -> None:
    expected = {
        (*cause, measure): reference.ranked(values)
        for cause, both in reference.recoveries(told).items()
        for measure, values in zip(("overshoot", "wait"), both, strict=True)
        if values
    }
    assert expected
    keys, quantiles = ("mode", "outcome", "reason", "measure"), ("n", "p50", "p95", "p99", "p999", "max")
    rows = findings.tables["recovery_times"]
    assert {tuple(row[key] for key in keys): tuple(row[name] for name in quantiles) for row in rows} == expected


def test_durations_are_those_of_the_reference(told: list[Told], findings: Findings) -> None:
    quantiles = ("n", "p50", "p95", "p99", "p999", "max")
    rows = findings.tables["durations"]
    found = {(row["type"], row["measure"]): tuple(row[name] for name in quantiles) for row in rows}
    assert found == reference.durations(told)
    assert found


def test_counts_are_those_of_the_reference(told: list[Told], findings: Findings) -> None:
    tables = findings.tables
    done = {row["delivery"]: row["jobs"] for row in tables["deliveries_until_done"]}
    assert done == reference.deliveries_until_done(told)
    assert {(row["event"], row["verb"]): row["calls"] for row in tables["late_writes"]} == reference.late_writes(told)
    counts = ("processes", "deliveries", "stalls")
    workers = {row["worker"]: tuple(row[name] for name in counts) for row in tables["stalls_by_worker"]}
    assert workers == reference.stalls_by_worker(told)
    open_jobs = {(row["group"], row["job"], row["event"]) for row in tables["unsettled_jobs"]}
    assert open_jobs == reference.unsettled(told)


def test_terms_are_those_of_the_reference(told: list[Told], findings: Findings) -> None:
    names = ("token", "holder", "began_ms", "ended_ms", "end", "gap_ms")
    assert [tuple(row[name] for name in names) for row in findings.tables["terms"]] == reference.terms(told)


def test_the_drills_own_ledger_agrees(drill: Drilled, findings: Findings) -> None:
    ledger = drill.report
    recoveries = findings.tables["recovery_counts"]
    made_ready = sum(row["recoveries"] for row in recoveries if row["outcome"] != "dead_lettered")
    assert (made_ready, sum(row["early"] for row in recoveries)) == (ledger["recovered"], ledger["early_recoveries"])
    late = findings.tables["late_writes"]
    assert sum(row["calls"] for row in late if row["event"] == "fenced") == ledger["writes_fenced"]
    assert findings.total("duplicates", "jobs") <= len(ledger["duplicates"])


def test_handmade_stories_are_told_alike_by_both(spark: SparkSession) -> None:
    rows = [row for row in stories.ALL if row["event"] != "redriven"]
    told = [_as_told(row) for row in rows]
    answers = ask(spark, ("recoveries",), events=rows).answers
    assert started_again(spark) == reference.second_starts(told)
    found = {(row["mode"], row["outcome"], row["reason"]) for row in answers["recoveries"] if not row["is_sum"]}
    assert found == reference.recoveries(told).keys()


def _as_told(row: stories.Row) -> Told:
    common = ("id", "stream", "at", "seq", "event", "job", "date")
    data = {name: value for name, value in row.items() if name not in common and value is not None}
    ms = int(str(row["id"]).split("-")[0])
    return Told(row["stream"], ms, row["seq"], row["event"], row["job"] or "", data)
