"""The commands of docs/lake-queries.md, run as they stand there, find what the report finds."""

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.analysis.answers import Rows
from reaper.pipeline.analysis.asking import LakeQueries, read_tables
from reaper.pipeline.report.findings import tables_of
from tests.pipeline.conftest import Generated
from tests.pipeline.questions import EVER
from tests.support.processes import ROOT

PAGE = (ROOT / "docs/lake-queries.md").read_text(encoding="utf-8")
JOB = "1767592801234-0"
"""The job that the page asks for."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, generated: Generated) -> dict[str, Rows]:
    asker = LakeQueries(spark, read_tables(spark, str(generated.path)), EVER, embedded=True)
    return tables_of(asker.ask(lambda _: None).answers)


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, found)  # noqa: S102 - the page is ours
    return found


def jobs_done(tables: dict[str, Rows]) -> list[tuple[str, int]]:
    return sorted((row["group"], row["n"]) for row in tables["event_counts"] if row["event"] == "acked")


def test_duckdb(generated: Generated, tables: dict[str, Rows], functions: dict[str, Any]) -> None:
    lake = functions["open_lake"](str(generated.path))
    done, recoveries, bad, twice, story = blocks("sql")
    assert [row[:2] for row in lake.sql(done).fetchall()] == jobs_done(tables)
    recovered = lake.sql(recoveries).fetchall()
    assert sum(row[2] for row in recovered) == sum(row["recoveries"] for row in tables["recovery_counts"])
    periods = lake.sql(bad).fetchall()
    assert len(periods) == 5
    assert periods[0][3] >= periods[4][3] > 0
    assert periods[0][2] <= max(row["longest_wait_ms"] or 0 for row in tables["over_time"])
    assert [row[2] for row in lake.sql(twice).fetchall()] == [row["job"] for row in tables["duplicate_jobs"]]
    known = tables["duplicate_jobs"][0]["job"]
    assert JOB in story
    events = [row[1] for row in lake.sql(story.replace(JOB, known)).fetchall()]
    assert {"acked", "rejected"} <= set(events)


def test_polars(generated: Generated, tables: dict[str, Rows], functions: dict[str, Any]) -> None:
    assert [row[:2] for row in functions["done"](str(generated.path)).rows()] == jobs_done(tables)
    story = functions["story"](str(generated.path), tables["duplicate_jobs"][0]["job"])
    assert {"acked", "rejected"} <= set(story["event"])


def test_both_have_the_quantiles_of_the_report(
    generated: Generated, tables: dict[str, Rows], functions: dict[str, Any]
) -> None:
    """Of a group with one type of job."""
    (group,) = [row for row in tables["durations"] if row["measure"] == "run" and row["group"] == "sender"]
    ours = [("sender", group["n"], group["p99"])]
    from_duckdb = functions["open_lake"](str(generated.path)).sql(blocks("sql")[0]).fetchall()
    assert [row for row in from_duckdb if row[0] == "sender"] == ours
    assert [row for row in functions["done"](str(generated.path)).rows() if row[0] == "sender"] == ours
