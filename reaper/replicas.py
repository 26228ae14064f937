"""A replica registers itself as one JSON document in the hash ``{<namespace>}:replicas``.

The service writes it every few seconds, and ``reaper status`` reads it. The field is `Replica.id`. The document has
counters and the worst groups only. All groups that the replica watches are in the hash ``{<namespace>}:groups``, which
is written after changes. Names that end in ``_ms`` are milliseconds. Moments are the *server's* time, so the clocks of
replicas do not matter. A reader ignores unknown fields, and uses defaults for fields that an older replica did not
write.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from redis.asyncio import Redis

from workers.protocol.events import MOST
from workers.protocol.keys import NamespaceKeys
from workers.protocol.messages import text

HEARTBEATS_MISSED = 3
"""A replica is gone once this many heartbeats were missed."""
MOST_BYTES = 8_192
"""The longest document."""
MOST_ERROR = 300
"""Characters of an error in a report."""

SCANNED = "done"

Whole = Annotated[int, Field(ge=-MOST, le=MOST)]
"""A number within these limits. Other programs can write to the hash, so other heartbeats are unreadable."""


@dataclass(slots=True, kw_only=True)
class GroupReport:
    """The state of one stream/group pair since the term began, as the replica knows it that serves it, or cannot."""

    group: str
    """As ``stream/group``."""
    visibility_ms: Whole
    max_deliveries: Whole
    redelivery: str
    pattern: str = ""
    """The pattern that the group was found by; '' = the settings name it."""
    token: Whole = 0
    """Counts the terms of the group; 0 = this replica does not hold its lease."""

    scan_interval_ms: Whole = 0
    """Time between two scans of the group; 0 = unknown."""
    timers: Whole = 0
    late_ms: Whole = 0
    """For how long recovery should have begun: the replica is too slow."""

    last_scan_ms: Whole = 0
    """When the latest scan (full or not) ended; 0 = none yet."""
    scan_entries: Whole = 0
    """Pending entries that the latest full scan saw."""
    last_full_scan_ms: Whole = 0

    recovered: Whole = 0
    """Deliveries that were recovered; of an observer: that would have been, each counted once."""
    held: Whole = 0
    """Deliveries that are overdue and cannot be copied now; they stay pending."""
    unread_ms: Whole = 0
    """For how long jobs have been ready while no consumer read and none had a delivery, by the latest full scan."""
    lost: Whole = 0
    """Deliveries that were reported as lost."""
    in_doubt: Whole = 0
    """Deliveries whose consumer is gone: acknowledged before, or dropped."""
    false_alarms: Whole = 0
    """Of an observer: deliveries that would have been recovered, and that their own consumer has settled later."""
    slowest_ms: Whole = 0
    """Of an observer: the highest age at which one of those was settled, or less."""
    false_recoveries: Whole = 0
    """Deliveries that a third-party consumer settled after another one was recovered from it."""
    false_recoveries_of: Mapping[str, Whole] = field(default_factory=dict)
    """By consumer, for those that have the most."""

    refusal: str = ""
    """Why recovery refuses here: '' | several_groups | explicit_ids | foreign_namespace | no_group | …"""
    paused: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternCounts:
    """Numbers of groups that were found by one pattern, or that the settings name."""

    watched: Whole = 0
    held: Whole = 0
    problems: Mapping[str, Whole] = field(default_factory=dict)
    """Groups with a problem, by its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One heartbeat."""

    id: str
    name: str
    host: str
    pid: Whole
    version: str
    settings: str = ""
    """Digest of the settings that replicas must have in common to take groups from each other."""
    started_ms: Whole
    at_ms: Whole
    heartbeat_ms: Whole
    """Interval between heartbeats."""
    observe: bool = False
    terms: Whole = 0
    """Leases that this replica has taken."""
    server: str = ""
    watched: Whole = 0
    """How many groups it may serve."""
    held: Whole = 0
    """How many leases of groups it holds."""
    patterns: Mapping[str, PatternCounts] = field(default_factory=dict)
    """By pattern; '' = groups that the settings name."""
    scan: str = ""
    """How its last scan for the streams of patterns went: `SCANNED`, or why it failed. '' = it has not scanned."""
    groups: Mapping[str, GroupReport] = field(default_factory=dict)
    """By pair (``stream/group``), the worst first, of those that it holds or observes, and those that it cannot serve.
    """

    def is_live(self, now_ms: int) -> bool:
        """Tell whether the heartbeat is fresh at ``now_ms`` (the server's clock)."""
        # A moment in the future is as bad as an old one. The server's clock was set back, and live replicas have
        # registered again.
        return abs(now_ms - self.at_ms) <= self.heartbeat_ms * HEARTBEATS_MISSED

    def to_json(self) -> str:
        """Encode for the hash, without default values, and without the groups for which there is no room."""
        groups = [(pair, replace(report, error=report.error[:MOST_ERROR])) for pair, report in self.groups.items()]
        while True:
            document = _codec().dump_json(replace(self, groups=dict(groups)), exclude_defaults=True)
            if len(document) <= MOST_BYTES or not groups:
                return document.decode()
            groups.pop()

    @staticmethod
    def from_json(document: str | bytes) -> "Replica":
        """Decode a heartbeat of any version. Raises ValueError if it is unreadable."""
        return _codec().validate_json(document)


@cache
def _codec() -> TypeAdapter[Replica]:
    """Return the codec of heartbeats. Building it takes hundreds of times as long as using it."""
    return TypeAdapter(Replica)


async def read_watched(client: Redis, keys: NamespaceKeys) -> dict[str, frozenset[str]]:
    """Return the groups that each replica watches, by its ID, also of replicas that have ended."""
    fields: Any = await client.hgetall(keys.groups)
    return {text(name): frozenset(text(pairs).split("\n")) - {""} for name, pairs in fields.items()}


async def read_replicas(client: Redis, keys: NamespaceKeys) -> tuple[Replica, ...]:
    """Return every heartbeat that can be read, fresh or not, by name."""
    fields: Any = await client.hgetall(keys.replicas)
    return parse_replicas(fields.values())


def parse_replicas(values: Iterable[bytes | str]) -> tuple[Replica, ...]:
    """Decode heartbeats, without those that are unreadable."""
    replicas = []
    for value in values:
        try:
            replicas.append(Replica.from_json(value))
        except ValueError:
            continue
    return tuple(sorted(replicas, key=lambda replica: (replica.name, replica.id)))
