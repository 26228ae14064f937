"""The state of a namespace and of its groups. Times are milliseconds. Moments are the server's clock.

`reaper.operations.snapshot` reads it from Redis, and `reaper.operations.judgement` finds the problems.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from reaper.lease import OFFER
from reaper.operations.durations import duration
from reaper.replicas import GroupReport, PatternCounts, Replica
from workers.protocol.calls.declined import RecoveryWait
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import RecoveryMode

_NONCE = re.compile(r"\.[0-9a-f]+@\d+$")


def replica_of(holder: str) -> str:
    """Return the ID of the replica in the value of a lease (``replica.nonce@TTL`` or ``offer:replica``)."""
    return _NONCE.sub("", holder.removeprefix(OFFER))


@dataclass(frozen=True, slots=True)
class Count:
    """A count, which is ``at_least`` if counting was cut short."""

    number: int = 0
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.number}+" if self.at_least else str(self.number)


@dataclass(frozen=True, slots=True)
class SourceState:
    """The ready and pending jobs of one stream for the group. It is the stream itself, or its retry stream."""

    exists: bool = False
    """The stream exists and has this group."""
    is_foreign: bool = False
    """The key has another type."""
    entries: int = 0
    ready: Count = Count()
    oldest_ready_ms: int | None = None
    """Age of the oldest ready entry. None = unknown."""
    pending: int = 0
    oldest_pending_ms: int | None = None
    """Idle time of the oldest pending entry."""
    consumers: int = 0
    last_read_ms: int | None = None
    """How long ago a consumer last read here. None = never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """One group, from its keys and from the report of the replica that holds its lease."""

    group: str
    """As ``orders/billing``."""
    mode: str = ""
    """Recovery mode in the group settings. Empty without group settings."""
    policy: str = ""
    visibility_ms: int = 0
    max_deliveries: int = 0
    mismatches: tuple[str, ...] = ()
    """Settings of live workers that differ from the group's."""
    paused: bool = False
    recovery_wait: RecoveryWait | None = None
    """Recovery waits after a gap in the heartbeats."""
    main: SourceState = SourceState()
    retry: SourceState = SourceState()
    scheduled: int = 0
    """Delayed jobs, of the group and of the stream."""
    quarantined: int = 0
    released: int = 0
    dead_letters: int = 0
    holder: str = ""
    """Value of the group's lease. Empty if no replica holds it."""
    lease_left_ms: int = 0
    served_by: str = ""
    """ID of the live replica that holds the lease, or of an observer of the group."""
    report: GroupReport | None = None
    """From that replica. If no replica holds the lease, from one that cannot serve the group."""
    reported_ms: int = 0

    # Counters that the scripts keep in the group settings, by their names there. Counts begin when the group is first
    # served. 0 as a time is never.
    token: int = 0
    """Terms of the group."""
    recovered: int = 0
    fenced: int = 0
    """Writes that were fenced, because their replica did not hold the lease any more."""
    lost_payload: int = 0
    """Pending entries that were found deleted."""
    lost_payload_ms: int = 0
    """When the latest of them was found."""
    lost_delivery: int = 0
    """Deliveries that were certainly lost, since the last `reaper groups requeue --lost`."""
    groups_lost: int = 0
    """How often the group was found destroyed, or without all of its consumers."""
    groups_lost_ms: int = 0
    """When that was found last."""

    @property
    def held_by(self) -> str:
        """ID of the replica that holds the lease, alive or not. Empty if no replica holds it."""
        return replica_of(self.holder)

    @property
    def lease(self) -> tuple[str, ...]:
        """The holder, the token and the time left of the lease, for people. Empty if no replica holds it."""
        left = f"lease {duration(self.lease_left_ms)} left"
        return (self.held_by, f"token {self.token}", left) if self.holder else ()

    @property
    def recovers_itself(self) -> bool:
        """Tell whether the workers of the group recover stalled jobs."""
        return self.mode == RecoveryMode.EMBEDDED

    @property
    def keys(self) -> GroupKeys:
        """The Redis keys of the group."""
        return group_keys(*self.group.rsplit("/", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything ``reaper status`` shows, at one instant of the server's clock."""

    now_ms: int
    namespace: str
    server: str
    """Product and version, for example ``Valkey 9.1.2``."""
    replicas: tuple[Replica, ...] = ()
    drained: Mapping[str, int] = field(default_factory=dict)
    """IDs of the drained replicas, and until when they take no group."""
    watching: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The groups that each replica watches, by its ID."""
    groups: tuple[GroupState, ...] = ()
    """All known groups, or, of many, the worst."""
    left_out: int = 0
    """Known groups that were not read. Replicas count them by their problems."""

    @property
    def patterns(self) -> dict[str, PatternCounts]:
        """Numbers of groups by pattern, of all live replicas together. The pattern of named groups is empty."""
        found: dict[str, PatternCounts] = {}
        for replica in self.live:
            for pattern, theirs in replica.patterns.items():
                ours = found.get(pattern, PatternCounts())
                problems = dict(Counter(ours.problems) + Counter(theirs.problems))
                watched = max(ours.watched, theirs.watched)
                found[pattern] = PatternCounts(watched=watched, held=ours.held + theirs.held, problems=problems)
        return found

    @property
    def live(self) -> tuple[Replica, ...]:
        """Replicas with a fresh heartbeat."""
        return tuple(replica for replica in self.replicas if replica.is_live(self.now_ms))

    @property
    def silent(self) -> tuple[Replica, ...]:
        """Replicas that have stopped registering."""
        return tuple(replica for replica in self.replicas if not replica.is_live(self.now_ms))

    @property
    def able(self) -> tuple[Replica, ...]:
        """The live replicas that may hold groups."""
        return tuple(replica for replica in self.live if not replica.observe and replica.id not in self.drained)

    def replica(self, replica_id: str) -> Replica | None:
        """Return the live replica with this ID, or None."""
        return next((replica for replica in self.live if replica.id == replica_id), None)

    def watchers(self, group: str) -> tuple[Replica, ...]:
        """Return the live replicas that watch ``stream/group``."""
        return tuple(replica for replica in self.live if group in self.watching.get(replica.id, ()))

    @property
    def needs_no_reaper(self) -> bool:
        """Tell whether no replica is alive, and the workers of all groups recover stalled jobs."""
        return bool(self.groups) and not self.live and all(group.recovers_itself for group in self.groups)
