"""What all groups of one replica share."""

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
    """One replica, with what its groups work with and what they go by."""

    replica_id: str
    settings: ReaperSettings
    client: Redis
    """For what is asked seldom."""
    recoveries: PipelinedClient
    """For calls that redeliver."""
    reads: PipelinedClient
    """For scans and maintenance."""
    leases: PipelinedClient
    """For registrations and leases, which never wait behind the work of a thousand groups."""
    notices: Notices
    """Wakes who waits for a lease, or for the schedules."""
    wheel: Wheel = field(default_factory=Wheel)
    tasks: Tasks = field(default_factory=Tasks)
    changed: Callable[[], None] = lambda: None
    """Writes soon what the replica says of itself. The registry sets it."""
    able: tuple[str, ...] | None = None
    """IDs of the live replicas with our settings that may hold groups; None = the registry has not answered yet."""
    watched: int = 0
    """How many groups the replica may serve."""
    clock_offset_ms: int = 0
    """Server time minus our monotonic time, from the last contact; 0 = unknown."""

    def server_ms(self) -> int:
        """Return about what the server's clock says now, for people."""
        return monotonic_ms() + self.clock_offset_ms
