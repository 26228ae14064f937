"""Makes the report's findings of a lake."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from reaper.pipeline.advice.executions import records_of
from reaper.pipeline.advice.timeouts import Promise, advise
from reaper.pipeline.advice.words import as_json
from reaper.pipeline.analysis.asking import LakeQueries, read_tables
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.report.findings import Findings, find


def read_report(
    spark: SparkSession, lake: str, scope: Scope, tell: Callable[[str], None], *, embedded: bool
) -> Findings:
    """Ask everything of ``lake``. ``tell`` is called with the progress. Raises NoLakeError and errors of Spark."""
    asker = LakeQueries(spark, read_tables(spark, lake), scope, embedded=embedded)
    about = {"lake": lake, "made_at": scope.now.isoformat(timespec="seconds"), **scope.as_json()}
    findings = find(asker.ask(tell), about)
    add_advice(findings)
    return findings


def add_advice(findings: Findings) -> None:
    """Add the recommended visibility timeouts."""
    promise = Promise()
    records = records_of(findings.tables["executions"])
    findings.advice = as_json([advise(record, promise) for record in records], promise)
