"""All metrics, those of the messaging conventions and our own. Labels name streams and groups, never jobs or consumers.

They are almost free while no meter provider is set. Observed metrics (`GAUGES`) are read when metrics are
collected.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from workers.telemetry.names import SCOPE, SEMCONV, Attributes

MESSAGING_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
LONG_JOB_BUCKETS_S = (*MESSAGING_BUCKETS_S, 30, 60, 300, 900, 3600)
"""Jobs run longer than the ten seconds at which the conventions end."""
METER = metrics.get_meter(SCOPE, schema_url=SEMCONV)


def _duration(name: str, description: str, buckets_s: Sequence[float] = MESSAGING_BUCKETS_S) -> metrics.Histogram:
    return METER.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=buckets_s)


SENT = METER.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
CONSUMED = METER.create_counter("messaging.client.consumed.messages", "{message}", "Deliveries that were read.")
OPERATION_DURATION = _duration("messaging.client.operation.duration", "How long a call that sends or settles takes.")
PROCESS_DURATION = _duration("messaging.process.duration", "How long a handler runs.", LONG_JOB_BUCKETS_S)
RECOVERED = METER.create_counter("reaper.recovered", "{delivery}", "Deliveries that were recovered.")
RECOVERY_LATENCY = _duration(
    "reaper.recovery.latency", "How long after its visibility deadline a delivery was recovered."
)
WRITES_FENCED = METER.create_counter("reaper.writes.fenced", "{write}", "Writes of replicas that had lost the lease.")
SETTLEMENTS_REJECTED = METER.create_counter(
    "reaper.settlements.rejected", "{settlement}", "Settlements that came after their delivery was recovered."
)
LOST_DELIVERIES = METER.create_counter(
    "reaper.lost_deliveries",
    "{delivery}",
    "Deliveries that were lost because a third party deleted their consumer or group.",
)
LOST = METER.create_counter("reaper.lost", "{loss}", "Deleted groups, and deleted consumers of dead workers.")
FALSE_RECOVERIES = METER.create_counter(
    "reaper.false_recoveries",
    "{delivery}",
    "Deliveries that a third-party consumer settled after another one was recovered from it.",
)
LEASES_TAKEN = METER.create_counter("reaper.leases.taken", "{lease}", "Leases of groups that replicas took.")
SCAN_DURATION = _duration("reaper.scan.duration", "How long a scan of a group's pending entries takes.")


def record_lateness(idle_ms: int, visibility_s: float, labels: Attributes) -> None:
    """Measure how late a delivery was recovered that had been idle for ``idle_ms``."""
    if idle_ms >= 0:  # otherwise it had no owner and no deadline
        RECOVERY_LATENCY.record(max(0.0, idle_ms / 1000 - visibility_s), labels)


class Gauge(NamedTuple):
    """A metric whose value is read when metrics are collected."""

    name: str
    unit: str
    description: str


LEASES_HELD = Gauge("reaper.leases.held", "{lease}", "Groups whose lease the replica holds.")
GROUPS_WATCHED = Gauge("reaper.groups.watched", "{group}", "Groups whose lease the replica may hold.")
GROUPS_DEGRADED = Gauge("reaper.groups.degraded", "{group}", "Groups that the replica serves, by their problems.")
RECOVERY_WAIT = Gauge("reaper.recovery.wait", "s", "For how long recovery waits after a gap in the heartbeats.")
IN_FLIGHT = Gauge("reaper.in_flight", "{delivery}", "Deliveries that are pending.")
READY_AGE = Gauge("reaper.ready.oldest_age", "s", "Age of the oldest job that waits to be read.")
PENDING_AGE = Gauge("reaper.pending.oldest_age", "s", "Idle time of the oldest pending delivery.")
SCHEDULED = Gauge("reaper.scheduled", "{job}", "Jobs that wait for their time.")
QUARANTINED = Gauge("reaper.quarantined", "{job}", "Quarantined jobs, and released ones that are not settled.")
PAUSED = Gauge("reaper.recovery.paused", "{group}", "1 while an operator has paused recovery of the group.")
DISABLED = Gauge("reaper.recovery.disabled", "{group}", "1 while recovery is disabled, for example by the layout.")
UNDELIVERABLE = Gauge("reaper.undeliverable", "{delivery}", "Overdue deliveries that cannot be redelivered.")
DEAD_LETTERS = Gauge("reaper.dead_letters", "{job}", "Dead letters that are kept.")
PARTS_DENIED = Gauge("reaper.parts.denied", "{part}", "Parts of the process whose calls Redis denies now.")

GAUGES = (
    LEASES_HELD, GROUPS_WATCHED, GROUPS_DEGRADED, RECOVERY_WAIT, PAUSED, DISABLED, UNDELIVERABLE, IN_FLIGHT, READY_AGE,
    PENDING_AGE, SCHEDULED, QUARANTINED, DEAD_LETTERS, PARTS_DENIED,
)  # fmt: skip

Look = Callable[[], Iterable[tuple[float, Attributes]]]
"""Returns values with their labels. Called in the thread that collects."""


class Observations:
    """The observed metrics. An instrument is created once per process. It shows no value after its look has ended."""

    def __init__(self, meter: metrics.Meter = METER) -> None:
        self._meter = meter
        self._looks: dict[str, list[Look]] = {}

    def add(self, gauge: Gauge, look: Look) -> Callable[[], None]:
        """Show the values of ``look`` from now on. Return a function that ends it."""
        if (looks := self._looks.get(gauge.name)) is None:
            looks = self._looks[gauge.name] = []
            observe = partial(_observe, looks)
            self._meter.create_observable_gauge(gauge.name, [observe], gauge.unit, gauge.description)
        looks.append(look)
        return partial(looks.remove, look)


def _observe(looks: list[Look], _options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(value, labels) for look in list(looks) for value, labels in look()]


OBSERVATIONS = Observations()
