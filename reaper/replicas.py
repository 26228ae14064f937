"""A replica registers itself as one JSON document in the hash ``{<namespace>}:replicas``.

The service writes it every few seconds, and ``reaper status`` reads it. The field is `Replica.id`. The document has
counters and the worst groups only. All groups that the replica watches are in the hash ``{<namespace>}:groups``, which
is written after changes. Names that end in ``_ms`` are milliseconds of the *server's* clock, so the clocks of replicas
do not matter. A reader ignores unknown fields, and uses defaults for missing ones.
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
"""A replica that missed this many heartbeats is not alive."""
MOST_BYTES = 8_192
"""The longest document."""
MOST_ERROR = 300
"""Characters of an error in a report."""

SCANNED = "done"

Whole = Annotated[int, Field(ge=-MOST, le=MOST)]
"""A number in these limits. Heartbeats with other numbers come from another program, and are unreadable."""


@dataclass(slots=True, kw_only=True)
class GroupReport:
    """The state of one group since the term began, from a replica that serves it or that cannot serve it."""

    group: str
    """As ``stream/group``."""
    visibility_ms: Whole
    max_deliveries: Whole
    redelivery: str
    pattern: str = ""
    """The pattern that found the group. Empty if the settings name it."""
    token: Whole = 0
    """Number of the term. 0 = this replica does not hold the lease."""

    scan_interval_ms: Whole = 0
    """Time between two scans of the group. 0 = unknown."""
    timers: Whole = 0
    late_ms: Whole = 0
    """Time since the earliest timer was due. If it is long, the replica is too slow."""

    last_scan_ms: Whole = 0
    """End of the latest scan (full or not). 0 = none yet."""
    scan_entries: Whole = 0
    """Pending entries in the latest full scan."""
    last_full_scan_ms: Whole = 0

    recovered: Whole = 0
    """Recovered deliveries. An observer counts deliveries that it would have recovered, each once."""
    undeliverable: Whole = 0
    """Overdue deliveries that cannot be copied now, and stay pending."""
    unread_ms: Whole = 0
    """Time in which jobs were ready, and no consumer read or had a delivery, by the latest full scan."""
    lost: Whole = 0
    """Deliveries that are certainly lost."""
    in_doubt: Whole = 0
    """Deliveries of deleted consumers that were acknowledged before, or are lost."""
    false_alarms: Whole = 0
    """Deliveries that an observer would have recovered, and that their own consumer settled later."""
    slowest_ms: Whole = 0
    """The highest known age of one of them at its settlement."""
    false_recoveries: Whole = 0
    """Deliveries that third-party consumers settled after another one was recovered from them."""
    false_recoveries_of: Mapping[str, Whole] = field(default_factory=dict)
    """The same by consumer, for the consumers with the most."""

    disabled: str = ""
    """The reason if recovery is disabled, for example ``several_groups``, ``explicit_ids`` or ``no_group``."""
    paused: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternCounts:
    """Numbers of groups that one pattern found, or that the settings name."""

    watched: Whole = 0
    held: Whole = 0
    problems: Mapping[str, Whole] = field(default_factory=dict)
    """Number of groups with each kind of problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One heartbeat."""

    id: str
    name: str
    host: str
    pid: Whole
    version: str
    settings: str = ""
    """Digest of the settings that replicas must share to take groups from each other."""
    started_ms: Whole
    at_ms: Whole
    heartbeat_ms: Whole
    """Interval between heartbeats."""
    observe: bool = False
    terms: Whole = 0
    """Leases that this replica has taken."""
    server: str = ""
    watched: Whole = 0
    """Groups that it may serve."""
    held: Whole = 0
    """Groups whose lease it holds."""
    patterns: Mapping[str, PatternCounts] = field(default_factory=dict)
    """Numbers of groups by pattern. The pattern of named groups is empty."""
    scan: str = ""
    """`SCANNED`, or the error of its last scan for the streams of patterns. Empty if it has not scanned."""
    groups: Mapping[str, GroupReport] = field(default_factory=dict)
    """Reports by ``stream/group``, the worst first, of groups that it holds, observes or cannot serve."""

    def is_live(self, now_ms: int) -> bool:
        """Tell whether the heartbeat is fresh at ``now_ms`` (the server's clock)."""
        # A future time means that the server's clock was set back. Live replicas have registered again since then.
        return abs(now_ms - self.at_ms) <= self.heartbeat_ms * HEARTBEATS_MISSED

    def to_json(self) -> str:
        """Encode for the hash, without default values, and without the groups for which there is no room."""
        groups = [(name, replace(report, error=report.error[:MOST_ERROR])) for name, report in self.groups.items()]
        while True:
            document = _codec().dump_json(replace(self, groups=dict(groups)), exclude_defaults=True)
            if len(document) <= MOST_BYTES or not groups:
                return document.decode()
            groups.pop()

    @staticmethod
    def from_json(document: str | bytes) -> "Replica":
        """Decode a heartbeat. Raises ValueError if it is unreadable."""
        return _codec().validate_json(document)


@cache
def _codec() -> TypeAdapter[Replica]:
    """Return the codec of heartbeats. It is kept, because building it is slow."""
    return TypeAdapter(Replica)


async def read_watched(client: Redis, keys: NamespaceKeys) -> dict[str, frozenset[str]]:
    """Return the groups that each replica watches, by its ID, also of ended replicas. Raises redis-py's errors."""
    fields: Any = await client.hgetall(keys.groups)
    return {text(name): frozenset(text(groups).split("\n")) - {""} for name, groups in fields.items()}


async def read_replicas(client: Redis, keys: NamespaceKeys) -> tuple[Replica, ...]:
    """Return all readable heartbeats, fresh or not, sorted by name. Raises redis-py's errors."""
    fields: Any = await client.hgetall(keys.replicas)
    return parse_replicas(fields.values())


def parse_replicas(values: Iterable[bytes | str]) -> tuple[Replica, ...]:
    """Return the readable ones of some heartbeats, sorted by name."""
    replicas = []
    for value in values:
        try:
            replicas.append(Replica.from_json(value))
        except ValueError:
            continue
    return tuple(sorted(replicas, key=lambda replica: (replica.name, replica.id)))
