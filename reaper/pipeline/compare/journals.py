"""What the journals of the drills tell, asked on Spark: a second opinion beside each drill's own ledger."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from reaper.pipeline.analysis.answers import SHARES, Answers
from reaper.pipeline.analysis.asking import Asker, read_tables
from reaper.pipeline.analysis.scope import Scope
from reaper.pipeline.compare.play import Played
from reaper.pipeline.lake.ingest import ingest
from reaper.pipeline.lake.supervisor import Run
from reaper.pipeline.lake.tables import lake_at
from reaper.pipeline.settings import PipelineSettings
from workers.protocol.events import EventName

Told = dict[str, Any]
"""``overshoot`` and ``wait`` (``n, p50, p99, max``, ms), ``second_starts``, ``duplicates``, ``refused``."""


def ingest_journals(spark: SparkSession, settings: PipelineSettings) -> None:
    """Bring everything into the lake that lies in the Redis of ``settings``."""
    ingest(settings, lake_at(settings.lake), lambda: spark, Run(available_now=True))


def read_journals(spark: SparkSession, lake: str, played: Iterable[Played]) -> dict[tuple[str, str, int], Told]:
    """Return what the journal of each drill tells, by scenario, mode and turn. Modes without a journal have none."""
    asker = Asker(spark, read_tables(spark, lake), Scope(datetime.now(UTC)), embedded=True)
    told = journals_of(asker.ask(lambda _: None, ("activity_counts", *_QUESTIONS)).answers)
    found = {}
    for one in played:
        journal = one.report["keys"]["journal"]
        if journal in told:
            found[one.scenario, one.mode, one.turn] = told[journal]
    return found


_QUESTIONS = ("recoveries", "second_starts", "duplicate_jobs")


def journals_of(answers: Answers) -> dict[str, Told]:
    """Return the answers by journal. The journal of a drill has one group."""
    told: dict[str, Told] = {row["stream"]: _nothing() for row in answers["activity_counts"]}
    for row in answers["recoveries"]:
        if row["is_sum"] and row["n"] and row["measure"] in ("overshoot", "wait"):
            ranks = {name: int(row["quantiles"][SHARES.index(share)]) for name, share in _RANKS.items()}
            told[row["stream"]][row["measure"]] = {"n": row["n"], **ranks, "max": row["max"]}
    for row in answers["second_starts"]:
        told[row["stream"]]["second_starts"] += row["starts"]
    for row in answers["duplicate_jobs"]:
        told[row["stream"]]["duplicates"] += 1
    for row in answers["activity_counts"]:
        told[row["stream"]]["refused"] += row["n"] * (row["event"] == EventName.REFUSED)
    return told


_RANKS = {"p50": 0.5, "p99": 0.99}


def _nothing() -> Told:
    return {"overshoot": None, "wait": None, "second_starts": 0, "duplicates": 0, "refused": 0}
