"""What the journals of the drills tell, asked on Spark: a second opinion beside each drill's own ledger."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.analysis.histories import deliveries, histories, troubled_jobs
from reaper.pipeline.analysis.integrity import duplicates, refused_writes, second_starts
from reaper.pipeline.analysis.quantiles import quantiles
from reaper.pipeline.analysis.recovery import recoveries, recovery_tally
from reaper.pipeline.compare.play import Played
from reaper.pipeline.lake.ingest import ingest
from reaper.pipeline.lake.supervisor import Run
from reaper.pipeline.lake.tables import existing_lake, lake_at, read_events
from reaper.pipeline.settings import PipelineSettings

Told = dict[str, Any]
"""``overshoot`` and ``wait`` (``n, p50, p99, max``, ms), ``second_starts``, ``duplicates``, ``refused``."""


def ingest_journals(spark: SparkSession, settings: PipelineSettings) -> None:
    """Bring everything into the lake that lies in the Redis of ``settings``."""
    ingest(settings, lake_at(settings.lake), lambda: spark, Run(available_now=True))


def read_journals(spark: SparkSession, lake: str, played: Iterable[Played]) -> dict[tuple[str, str, int], Told]:
    """Return what the journal of each drill tells, by scenario, mode and turn. Modes without a journal have none."""
    existing_lake(lake)
    told = _ask(read_events(spark, lake))
    found = {}
    for one in played:
        journal = one.report["keys"]["journal"]
        if journal in told:
            found[one.scenario, one.mode, one.turn] = told[journal]
    return found


def _ask(events: DataFrame) -> dict[str, Told]:
    troubled = histories(events, troubled_jobs(events)).cache()
    of_deliveries = deliveries(troubled).cache()
    started = second_starts(of_deliveries).cache()
    told: dict[str, Told] = {row["stream"]: _nothing() for row in events.select("stream").distinct().collect()}
    tallied = recovery_tally(recoveries(troubled, of_deliveries))
    by_stream = tallied.groupBy("stream", "measure", "ms").agg(F.sum("n").alias("n"))
    for row in quantiles(by_stream, ["stream", "measure"], "ms").collect():
        told[row["stream"]][row["measure"]] = {name: row[name] for name in ("n", "p50", "p99", "max")}
    counted = {
        "second_starts": started.groupBy("stream").agg(F.count("*").alias("n")),
        "duplicates": duplicates(of_deliveries, started).groupBy("stream").agg(F.count("*").alias("n")),
        "refused": refused_writes(events).groupBy("stream").agg(F.sum("calls").alias("n")),
    }
    for name, counts in counted.items():
        for row in counts.collect():
            told[row["stream"]][name] = row["n"]
    return told


def _nothing() -> Told:
    return {"overshoot": None, "wait": None, "second_starts": 0, "duplicates": 0, "refused": 0}
