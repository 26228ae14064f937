"""Columns that several analyses share: what an event is, and which delivery it is about.

``stream`` is the key of the journal, so ``(stream, group)`` names a consumer group.
"""

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from workers.protocol.events import EventName

GROUP = ("stream", "group")
"""Key of a consumer group."""
JOB = (*GROUP, "job")
"""Key of a job."""
DELIVERY = (*JOB, "generation", "entry", "delivery")
"""Key of one delivery of a job: an entry may be delivered several times, and a job may have several entries."""

PLAIN = (EventName.ACKED, EventName.DELIVERED, EventName.STARTED, EventName.EXTENDED)
"""Events of a job that goes well."""

MODE_ADOPT = "adopt"
"""``mode`` of what a worker took over from an earlier process of its name."""
REASON_SUSPECT = "suspect"
"""``reason`` of a ``recovered`` event that tells of no stalled delivery: a parked job is made ready."""
REASONS_IN_DOUBT = ("crashed_in_company", "never_arrived")

BY_HASH = "shuffle_hash"
"""Hint for the smaller side of a join: in memory, part by part. Saves sorting both sides."""


EARLIEST = datetime(2018, 1, 1, tzinfo=UTC)
"""Before this year no Redis had streams."""
CLOCKS_DIFFER = timedelta(days=1)
"""So far may the server's clock be ahead of this machine's."""


def is_misdated(latest: datetime) -> Column:
    """Tell whether an event claims to be earlier or later than anything can be: a clock was wrong."""
    late = (F.col("date") >= F.lit(latest.date())) & (F.col("at") >= F.lit(latest))
    return late | (F.col("date") < F.lit(EARLIEST.date()))


LONGEST_MS = 400 * 86_400_000
"""What is longer, or negative, is no duration: a clock was set, or somebody wrote an instant that was none."""


def is_duration(ms: Column) -> Column:
    """Tell whether it can be one; null of null."""
    return ms.between(0, LONGEST_MS)


def holds(condition: Column) -> Column:
    """Tell whether a condition is true; null is not."""
    return F.coalesce(condition, F.lit(False))


def named(*names: str) -> Column:
    """Tell whether a row is an event of one of these names."""
    return F.col("event").isin(*names)


def at_ms() -> Column:
    """Return when the event happened, in ms of the server's clock."""
    return F.unix_millis("at")


def is_stall() -> Column:
    """Tell whether the event ends a delivery that stalled: recovered, parked or dead-lettered after its time was up.

    A dead letter that a worker made of its own delivery (a failure, not a stall) has no idle time.
    """
    ends = named(EventName.RECOVERED, EventName.SUSPECTED, EventName.DEAD_LETTERED)
    return ends & F.col("idle_ms").isNotNull()


def is_settlement() -> Column:
    """Tell whether a worker wrote the event at the end of a delivery; it then knows how long the job ran."""
    return F.col("run_ms").isNotNull() & named(
        EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK, EventName.DEAD_LETTERED, EventName.REFUSED
    )


def is_completion() -> Column:
    """Tell whether the event says that a job's work was done, whether its settlement was taken or refused."""
    return named(EventName.ACKED) | (named(EventName.REFUSED) & holds(F.col("verb") == "ack"))


def true_delivery() -> Column:
    """Return the delivery count of the delivery that the event is about.

    Suspects that crashed in company, or may never have begun, are not convicted: their last delivery is journalled
    uncounted, as the one before.
    """
    uncounted = holds(F.col("reason").isin(*REASONS_IN_DOUBT)) & named(EventName.SUSPECTED)
    return F.coalesce("delivery", F.lit(0)) + uncounted.cast("int")


def worker_of(consumer: str) -> Column:
    """Return the worker behind a consumer ``<name>.<nonce>``; its name is by default that of its host."""
    return F.regexp_replace(consumer, r"\.[0-9a-f]{12}$", "")


def stream_of(journal: str) -> Column:
    """Return the stream of a journal: ``{orders}:journal`` is that of ``orders``."""
    name = F.regexp_replace(journal, r":journal$", "")
    return F.regexp_replace(name, r"^\{([^}]+)\}$", "$1")


def permille(part: Column, whole: Column) -> Column:
    """Return ``part`` of ``whole`` in thousandths; null where there is nothing."""
    return F.when(whole > 0, F.round(part * 1000 / whole, 3))
