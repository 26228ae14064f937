"""State and clients that all groups of one replica share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from redis.asyncio import Redis

from reaper.pipelined import PipelinedClient
from reaper.settings import ReaperSettings
from reaper.tasks import Tasks
from reaper.wheel import Wheel
from workers.runtime.clock import monotonic_ms
from workers.runtime.notices import Notices


@dataclass(slots=True, eq=False)
class ReplicaContext:
    """The clients of one replica, and its view of the other replicas."""

    replica_id: str
    settings: ReaperSettings
    client: Redis
    """For rare commands."""
    recoveries: PipelinedClient
    """For recovery calls."""
    reads: PipelinedClient
    """For scans and maintenance."""
    leases: PipelinedClient
    """For registrations and leases, which must not wait behind the work of a thousand groups."""
    notices: Notices
    """Wakes groups when a lease is handed over, or a job falls due sooner."""
    wheel: Wheel = field(default_factory=Wheel)
    tasks: Tasks = field(default_factory=Tasks)
    changed: Callable[[], None] = lambda: None
    """Makes the replica register soon. `Registry` sets it."""
    able: tuple[str, ...] | None = None
    """IDs of the live replicas with the same settings that may hold groups. None = unknown, before the first answer."""
    logged_groups: set[str] = field(default_factory=set)
    """Groups with a current failure that is logged."""
    terms: int = 0
    """How many leases the replica has taken."""
    watched: int = 0
    """How many groups the replica may serve."""
    clock_offset_ms: int = 0
    """Time of the server minus monotonic time of this process, by the last registration. 0 = unknown."""

    def server_ms(self) -> int:
        """Return about the time of the server now."""
        return monotonic_ms() + self.clock_offset_ms
