"""Makes the report's findings of a lake."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from reaper.pipeline.advice.executions import records_of
from reaper.pipeline.advice.timeouts import Promise, advise
from reaper.pipeline.advice.words import as_json
from reaper.pipeline.analysis.asking import Asker, read_tables
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.report.findings import Findings, find

MOST_UNANSWERED = 3
"""If more questions stay open, Spark fails, and there is no page."""


def read_report(
    spark: SparkSession, lake: str, scope: Scope, tell: Callable[[str], None], *, embedded: bool
) -> Findings:
    """Ask everything of ``lake``. ``tell`` hears how far it is. Raises NoLakeError, NoAnswersError."""
    asker = Asker(spark, read_tables(spark, lake), scope, embedded=embedded)
    about = {"lake": lake, "made_at": scope.now.isoformat(timespec="seconds"), **scope.as_json()}
    findings = find(asker.ask(tell, most_unanswered=MOST_UNANSWERED), about)
    add_advice(findings)
    return findings


def add_advice(findings: Findings) -> None:
    """Add which visibility timeouts to set."""
    promise = Promise()
    records = records_of(findings.tables["executions"])
    findings.advice = as_json([advise(record, promise) for record in records], promise)
