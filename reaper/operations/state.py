"""The state of a namespace and of its groups, as everything here talks of it.

`reaper.operations.snapshot` reads it from Redis, and `reaper.operations.judgement` finds the problems. Times are
milliseconds. Moments are the server's clock.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from reaper.replicas import GroupReport, PatternCounts, Replica
from workers.protocol.calls.refusals import RecoveryWait
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import RecoveryMode

_OFFER = "offer:"
_NONCE = re.compile(r"\.[0-9a-f]+@\d+$")


def replica_of(holder: str) -> str:
    """Return the ID of the replica in the value of a lease: ``replica.nonce@TTL``, or ``offer:replica``."""
    return _NONCE.sub("", holder.removeprefix(_OFFER))


@dataclass(frozen=True, slots=True)
class Count:
    """A count, which is ``at_least`` if counting was cut short."""

    number: int = 0
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.number}+" if self.at_least else str(self.number)


@dataclass(frozen=True, slots=True)
class SilentConsumer:
    """A consumer that holds deliveries and has shown no life for longer than the visibility timeout."""

    name: str
    pending: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class SourceState:
    """The waiting and pending jobs of one stream for the group. It is the stream itself, or its retry stream."""

    exists: bool = False
    """There is such a stream, with this group."""
    is_foreign: bool = False
    """Its key holds something that is no stream."""
    entries: int = 0
    ready: Count = Count()
    oldest_ready_ms: int | None = None
    """Age of the oldest entry that waits, where it is known."""
    pending: int = 0
    oldest_pending_ms: int | None = None
    """Idle time of the oldest pending entry; -1 = nobody owns it."""
    is_exhausted: bool = False
    """The last possible entry ID was delivered: Redis adds no further entry."""
    consumers: int = 0
    last_read_ms: int | None = None
    """How long ago a consumer last took something here; None = never."""
    silent: tuple[SilentConsumer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """One stream/group pair, as Redis shows it, and as the replica reports it that holds its lease."""

    stream: str
    group: str
    mode: str = ""
    """Recovery mode that the group agreed on; '' = nobody has served it yet."""
    policy: str = ""
    visibility_ms: int = 0
    max_deliveries: int = 0
    mismatches: tuple[str, ...] = ()
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
    recovered: int = 0
    """Since the group was first served."""
    stale_writes_refused: int = 0
    """Writes that were rejected, because their replica did not hold the lease any more."""
    lost_payload: int = 0
    """Entries that were found deleted although they were pending, since the group was first served."""
    lost_payload_ms: int = 0
    """When the latest of them was found, by the server's clock; 0 = never."""
    lost_deliveries: int = 0
    """Deliveries that were reported as lost for certain, since the last `reaper groups requeue --lost`."""
    lost_deliveries_ms: int = 0
    groups_lost: int = 0
    """How often somebody destroyed the group, or deleted all of its consumers, since it was first served."""
    groups_lost_ms: int = 0
    """When that was found last, by the server's clock; 0 = never. The same above."""
    holder: str = ""
    """Value of the group's lease; '' = no replica holds it."""
    lease_left_ms: int = 0
    token: int = 0
    """Counts the terms of the group."""
    served_by: str = ""
    """ID of the live replica that holds the lease; among observers, of one that observes the group."""
    report: GroupReport | None = None
    """From that replica. If no replica holds the lease, from one that cannot serve the group."""
    reported_ms: int = 0

    @property
    def pair(self) -> str:
        """The pair in its written form ``orders/billing``."""
        return f"{self.stream}/{self.group}"

    @property
    def held_by(self) -> str:
        """ID of the replica that holds the lease, alive or not; '' = no replica holds it."""
        return replica_of(self.holder)

    @property
    def recovers_itself(self) -> bool:
        """Tell whether the group's workers recover what stalls."""
        return self.mode == RecoveryMode.EMBEDDED

    @property
    def keys(self) -> GroupKeys:
        """The Redis keys of this pair."""
        return group_keys(self.stream, self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything ``reaper status`` shows, at one instant of the server's clock."""

    now_ms: int
    namespace: str
    server: str
    """Product and version, such as ``Valkey 9.1.2``; '' = nobody asked."""
    replicas: tuple[Replica, ...] = ()
    drained: Mapping[str, int] = field(default_factory=dict)
    """IDs of the replicas that are to hold no group, and until when."""
    observers: tuple[Replica, ...] = ()
    """Live replicas that only observe, in a namespace of their own; looked for where nobody else is alive."""
    watching: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The pairs that each replica watches, by its ID."""
    groups: tuple[GroupState, ...] = ()
    """All known groups, or, of many, the worst."""
    left_out: int = 0
    """Known groups that were not looked at: what is known of them is what the replicas say."""

    @property
    def patterns(self) -> dict[str, PatternCounts]:
        """Numbers of groups by pattern, of all live replicas together; '' = groups that the settings name."""
        found: dict[str, PatternCounts] = {}
        for replica in self.live:
            for pattern, theirs in replica.patterns.items():
                ours = found.get(pattern, PatternCounts())
                problems = dict(Counter(ours.problems) + Counter(theirs.problems))
                watched = max(ours.watched, theirs.watched)
                found[pattern] = PatternCounts(watched=watched, held=ours.held + theirs.held, problems=problems)
        return found

    def group(self, pair: str) -> GroupState | None:
        """Return the state of ``stream/group``, or None for a group that was not read."""
        return next((group for group in self.groups if group.pair == pair), None)

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

    def watchers(self, pair: str) -> tuple[Replica, ...]:
        """Return the live replicas that watch ``stream/group``."""
        return tuple(replica for replica in self.live if pair in self.watching.get(replica.id, ()))

    def holds(self, replica_id: str) -> int:
        """Return how many of the groups the replica serves."""
        if self.left_out:
            return sum(replica.held for replica in self.live if replica.id == replica_id)
        return sum(group.served_by == replica_id for group in self.groups)

    @property
    def needs_no_reaper(self) -> bool:
        """Tell whether there is none, and all groups are recovered by their workers."""
        embedded = bool(self.groups) and all(group.recovers_itself for group in self.groups)
        return embedded and not self.live

    @property
    def is_tried_out(self) -> bool:
        """Return whether there are observers, and only workers have ever recovered in the groups."""
        return (
            bool(self.observers) and not self.live and all(not one.mode or one.recovers_itself for one in self.groups)
        )
