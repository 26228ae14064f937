"""The jobs of a generated lake, with their kinds, times, and the events of their stories."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from reaper.pipeline.lake.schema import EVENTS
from tests.benchmarks.stories import STORIES, Moment, Step
from workers.protocol.events import EventName
from workers.protocol.keys import group_keys

BEGIN_MS = round(datetime(2026, 1, 5, 6, tzinfo=UTC).timestamp() * 1000)
JOBS_PER_S = 50
TERM_MS = 2 * 3_600_000
"""How long one replica leads."""
_STEPS_OF_A_JOB = 64
"""No job has more: an event's number within its millisecond is the job's number times this, plus the step's."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs of one type in one group."""

    stream: str
    group: str
    per_thousand: int
    """How many of a thousand jobs are of this kind."""
    visibility_ms: int
    median_ms: int
    """Of the run times, which are log-normal with ``sigma``."""
    sigma: float
    type: str | None = None
    mode: str = "reaper"
    workers: int = 12
    foreign: bool = False
    """The workers are somebody else's, and journal nothing."""


KINDS = (
    Kind("orders", "billing", 300, 30_000, 180, 0.9, type="invoice"),
    Kind("orders", "billing", 100, 30_000, 60, 0.6, type="refund"),
    Kind("orders", "billing", 30, 30_000, 4_000, 1.1, type="report"),
    Kind("mail", "sender", 320, 10_000, 40, 1.0, workers=4),
    Kind("media", "encoder", 150, 60_000, 120, 0.7, type="thumbnail", mode="embedded", workers=6),
    Kind("media", "encoder", 50, 60_000, 9_000, 0.8, type="video", mode="embedded", workers=6),
    Kind("events", "search", 50, 20_000, 300, 1.2, foreign=True, workers=3),
)

_ERRORS = (
    ("ConnectionError", "could not connect to 10.0.17.%2$d:5432 after %1$d ms", "connect", "app/database.py"),
    ("ValueError", "invoice 'INV-%d' of %d lines is empty", "check", "app/invoices.py"),
    ("KeyError", "'customer_%d_%d'", "look_up", "app/customers.py"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/srv/data/%d/%d.json'", "load", "app/files.py"),
    ("TimeoutError", "gateway did not answer request %d-%d within 30 s", "charge", "app/gateway.py"),
)
_KILLED = "not settled within the visibility timeout"


def uniform(seed: int, what: str, *more: str) -> Column:
    """Return a number in [0, 1) that belongs to the job."""
    bits = F.shiftrightunsigned(F.xxhash64(F.lit(seed), F.lit(what), "job_no", *more), 11)
    return bits / F.lit(float(2**53))


def _pick(uniform: Column, weights: Sequence[int]) -> Column:
    """Return an index, each as often as its weight says."""
    total, below = sum(weights), 0
    picked = F.lit(len(weights) - 1)
    bounds = []
    for index, weight in enumerate(weights[:-1]):
        below += weight
        bounds.append((index, below / total))
    for index, bound in reversed(bounds):
        picked = F.when(uniform < bound, F.lit(index)).otherwise(picked)
    return picked


def _jobs(spark: SparkSession, jobs: int, seed: int, files: int) -> DataFrame:
    """Return one row a job, with its kind, its story, and its times."""
    gap_ms = 1000 / JOBS_PER_S
    numbered = spark.range(0, jobs, 1, files).withColumnRenamed("id", "job_no")
    rare_first = _pick(uniform(seed, "story"), [story.per_million for story in STORIES])
    return numbered.select(
        "job_no",
        _pick(uniform(seed, "kind"), [kind.per_thousand for kind in KINDS]).alias("kind"),
        rare_first.alias("story"),
        (F.lit(BEGIN_MS) + F.floor((F.col("job_no") + uniform(seed, "arrival")) * gap_ms)).alias("enqueued_ms"),
        # Two uniform numbers make a normal one.
        (F.sqrt(-2 * F.ln(1 - uniform(seed, "z1"))) * F.cos(2 * 3.141592653589793 * uniform(seed, "z2"))).alias("z"),
        F.floor(-8 * F.ln(1 - uniform(seed, "wait"))).alias("waits"),
        F.floor(1 - 6 * F.ln(1 - uniform(seed, "delay"))).alias("delay_ms"),
        F.floor(uniform(seed, "error") * len(_ERRORS)).cast("int").alias("error_no"),
        F.floor(uniform(seed, "detail") * 90_000).cast("int").alias("detail"),
        F.lit(seed).alias("seed"),
    )


def _kinds(spark: SparkSession) -> DataFrame:
    """Return the common values of jobs of each kind, with numbers for their times and names for their events."""
    rows = []
    for number, kind in enumerate(KINDS):
        keys = group_keys(kind.stream, kind.group)
        rows.append(
            (number, kind.visibility_ms, kind.median_ms, kind.sigma, kind.mode == "embedded", kind.foreign,
             keys.journal, keys.dead, kind.stream, kind.group, kind.type, kind.mode, kind.workers)
        )  # fmt: skip
    names = (
        "kind int, timeouts bigint, median_ms bigint, sigma double, embedded boolean, foreign boolean, "
        "journal string, dead string, source string, group string, type string, kind_mode string, workers int"
    )
    return spark.createDataFrame(rows, names)


_MOMENTS = ("at", "entry", "delivered", "run", "idle", "new_entry")
_FACTS = ("by", "delivery", "generation", "reason", "verb", "failed")
_TIMES = ("timeouts", "runs", "waits", "delays")
"""A job's own times, in ms; columns of a job, as `Moment` counts them."""


def _script(spark: SparkSession) -> DataFrame:
    """Return the table of steps, one row a step of each story."""
    rows: list[tuple[Any, ...]] = [
        (number, place, str(step.event), *(getattr(step, name) for name in _FACTS), *_flat(step))
        for number, story in enumerate(STORIES)
        for place, step in enumerate(story.steps)
    ]
    moments = ", ".join(f"{name}_{part} int" for name in _MOMENTS for part in Moment._fields)
    names = (
        "story int, step int, event string, by string, delivery int, generation int, reason string, verb string, "
        f"failed boolean, {moments}"
    )
    return spark.createDataFrame(rows, names)


def _flat(step: Step) -> Iterable[int | None]:
    for name in _MOMENTS:
        yield from getattr(step, name) or [None] * len(Moment._fields)


def steps(spark: SparkSession, jobs: int, seed: int, files: int) -> DataFrame:
    """Return one row an event of each job, with everything its columns are made of."""
    kinds, script = _kinds(spark), _script(spark)
    happened = _moments(_jobs(spark, jobs, seed, files), kinds, script)
    names = kinds.select("kind", "journal", "dead", "source", "group", "type", "kind_mode", "workers", "foreign")
    facts = script.drop(*(f"at_{part}" for part in Moment._fields))
    named = happened.join(F.broadcast(names), "kind").join(F.broadcast(facts), ["story", "step"])
    moments = {moment: _span(moment) for moment in _MOMENTS if moment != "at"}
    return named.withColumns({**moments, "job": F.concat_ws("-", "enqueued_ms", "job_no")})


def _moments(jobs: DataFrame, kinds: DataFrame, script: DataFrame) -> DataFrame:
    """Return one row an event, with its name, its moment, and the times of its job."""
    of_kind = kinds.select("kind", "timeouts", "median_ms", "sigma", "embedded", "foreign")
    timed = jobs.join(F.broadcast(of_kind), "kind")
    # Embedded workers look for stalled deliveries now and then, up to a quarter of the visibility timeout late.
    late = F.when(F.col("embedded"), F.floor(F.pmod("detail", F.col("timeouts") / 4))).otherwise(0)
    timed = timed.withColumns(
        {
            "runs": (F.floor(F.col("median_ms") * F.exp(F.col("sigma") * F.col("z"))) + 1).cast("bigint"),
            "delays": (F.col("delay_ms") + late).cast("bigint"),
        }
    ).drop("z", "delay_ms", "median_ms", "sigma", "embedded")
    told = (F.col("by") != "worker") | ~F.col("foreign")
    when = script.select("story", "step", "event", "by", *(f"at_{part}" for part in Moment._fields))
    steps = timed.join(F.broadcast(when), "story").where(told)
    at_ms = F.col("enqueued_ms") + _span("at")
    return steps.select(
        *jobs.drop("z", "delay_ms").columns,
        *(name for name in _TIMES if name != "waits"),
        "step",
        at_ms.alias("at_ms"),
        F.to_date(F.timestamp_millis(at_ms)).alias("date"),
        (F.col("job_no") * _STEPS_OF_A_JOB + F.col("step")).alias("seq"),
    )


def _span(moment: str) -> Column:
    """Return a moment in ms since the job was enqueued, or null if the step has none."""
    parts = [F.col(f"{moment}_{part}") * F.col(part) for part in _TIMES]
    return (sum(parts[1:], parts[0]) + F.col(f"{moment}_ms")).cast("bigint")


def entry_of(moment: str) -> Column:
    """Return the ID of an entry that was made at a moment."""
    made_ms = (F.col("enqueued_ms") + F.col(moment)).cast("string")
    return F.concat(made_ms, F.lit("-"), F.col("job_no").cast("string"))  # null if there is no moment


def term_of(at_ms: Column) -> Column:
    return (F.floor((at_ms - BEGIN_MS) / TERM_MS) + 1).cast("bigint")


def consumer() -> Column:
    """Return the consumer of the delivery, a worker with the name of its process in these hours."""
    worker = F.pmod(F.xxhash64("seed", "job_no", "delivery"), "workers")
    life = F.floor((F.col("enqueued_ms") - BEGIN_MS) / (6 * 3_600_000))
    nonce = F.substring(F.lpad(F.lower(F.hex(F.xxhash64("seed", "source", worker, life))), 16, "0"), 1, 12)
    ours = F.concat(F.col("source"), F.lit("-"), worker, F.lit("~"), nonce)
    return F.when(F.col("foreign"), F.concat(F.lit("bare-"), worker)).otherwise(ours)


def part_of_error(part: int) -> Column:
    text = F.element_at(F.array(*(F.lit(error[part]) for error in _ERRORS)), F.col("error_no") + 1)
    if part != 1:
        return text
    filled = [F.format_string(error[1], "detail", (F.col("detail") % 97).cast("int")) for error in _ERRORS]
    return F.element_at(F.array(*filled), F.col("error_no") + 1)


def error_of() -> Column:
    raised = F.concat(part_of_error(0), F.lit(": "), part_of_error(1))
    killed = (F.col("event") == EventName.DEAD_LETTERED) & (F.col("by") == "replica")
    return F.when(F.col("failed"), raised).when(killed, F.lit(_KILLED))


def _mode() -> Column:
    stalled = F.when(F.col("kind_mode") == "embedded", F.lit("embedded")).otherwise("reaper")
    return (
        F.when(F.col("by") == "operator", F.lit("operator"))
        .when(F.col("by") == "replica", stalled)
        .otherwise(F.col("kind_mode"))
    )


def event_columns() -> list[Column]:
    """Return the columns of `EVENTS`, made of a step's. Each costs calls to Java, so they are made once."""
    by_replica, by_worker = F.col("by") == "replica", F.col("by") == "worker"
    told_of_delivery = F.col("event") != EventName.LOST_PAYLOAD
    made = {
        "id": F.concat_ws("-", "at_ms", "seq"),
        "stream": F.col("journal"),
        "at": F.timestamp_millis("at_ms"),
        "seq": F.col("seq"),
        "event": F.col("event"),
        "job": F.col("job"),
        "group": F.col("group"),
        "entry": entry_of("entry"),
        "consumer": F.when((F.col("by") != "operator") & (F.coalesce("reason", F.lit("")) != "released"), consumer()),
        "delivery": F.when(told_of_delivery, F.col("delivery")),
        "generation": F.col("generation"),
        "mode": _mode(),
        "type": F.when(by_worker, F.col("type")),
        "token": F.when(by_replica & (F.col("kind_mode") == "reaper"), term_of(F.col("at_ms"))),
        "reason": F.col("reason"),
        "error": error_of(),
        "enqueued_ms": F.col("enqueued_ms"),
        "delivered_ms": F.col("enqueued_ms") + F.col("delivered"),
        "ready_ms": F.when(F.col("delivered").isNotNull(), F.col("enqueued_ms") + F.col("entry")),
        "begun_ms": F.when(F.col("run").isNotNull(), F.col("enqueued_ms") + F.col("delivered")),
        "run_ms": F.col("run"),
        "visibility_ms": F.when(by_replica, F.col("timeouts")),
        "idle_ms": F.col("idle"),
        "new_entry": entry_of("new_entry"),
        "dead_letter": F.when(F.col("event") == EventName.DEAD_LETTERED, F.concat_ws("-", "at_ms", F.col("job_no"))),
        "verb": F.col("verb"),
        "date": F.col("date"),
    }
    return [made.get(name, F.lit(None)).cast(EVENTS[name].dataType).alias(name) for name in EVENTS.names]
