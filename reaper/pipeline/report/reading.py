"""Makes the report's findings of a lake."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from reaper.pipeline.advice.choice import advise_group
from reaper.pipeline.advice.fragment import as_json, as_toml
from reaper.pipeline.advice.model import GroupRecord, Weights
from reaper.pipeline.advice.records import read_records
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
    add_advice(findings, read_records(spark.table("event")))
    return findings


def add_advice(findings: Findings, records: list[GroupRecord]) -> None:
    """Add which visibility timeouts to set."""
    weights = Weights()
    advice = [advise_group(record, weights) for record in records]
    findings.advice = as_json(advice, weights)
    findings.settings = as_toml(advice, weights) if advice else ""
