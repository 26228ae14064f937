"""Reads the journals of the drills on Spark: a second opinion beside each drill's own ledger."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from reaper.pipeline.analysis.answers import Answers
from reaper.pipeline.analysis.asking import Asker, read_tables
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.compare.findings import Opinion, Opinions
from reaper.pipeline.compare.play import Played
from reaper.pipeline.lake.ingest import ingest
from reaper.pipeline.lake.supervisor import Run
from reaper.pipeline.lake.tables import lake_at
from reaper.pipeline.settings import PipelineSettings

_QUESTIONS = ("activity_counts", "second_starts", "duplicate_jobs")


def ingest_journals(spark: SparkSession, settings: PipelineSettings) -> None:
    """Bring everything into the lake that lies in the Redis of ``settings``."""
    ingest(settings, lake_at(settings.lake), lambda: spark, Run(available_now=True))


def read_journals(spark: SparkSession, lake: str, played: Iterable[Played]) -> Opinions:
    """Return the opinion of each drill's journal. A mode without a journal has none."""
    asker = Asker(spark, read_tables(spark, lake), Scope(datetime.now(UTC)), embedded=True)
    opinions = opinions_of(asker.ask(lambda _: None, _QUESTIONS).answers)
    journals = {(one.scenario, one.mode, one.turn): one.report["keys"]["journal"] for one in played}
    return {drill: opinions[journal] for drill, journal in journals.items() if journal in opinions}


def opinions_of(answers: Answers) -> dict[str, Opinion]:
    """Return an opinion for each journal. The journal of a drill has one group."""
    starts, twice = Counter[str](), Counter(row["stream"] for row in answers["duplicate_jobs"])
    for row in answers["second_starts"]:
        starts[row["stream"]] += row["starts"]
    journals = {row["stream"] for row in answers["activity_counts"]}
    return {journal: Opinion(starts[journal], twice[journal]) for journal in journals}
