"""What all groups of one replica share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from redis.asyncio import Redis

from reaper.pipelined import PipelinedClient
from reaper.settings import ReaperSettings
from reaper.tasks import Tasks
from reaper.wheel import Wheel
from workers.runtime.notices import Notices


@dataclass(slots=True, eq=False)
class ReplicaContext:
    """One replica, and what its groups work with."""

    replica_id: str
    settings: ReaperSettings
    client: Redis
    """For what is asked seldom."""
    recoveries: PipelinedClient
    """For calls that redeliver."""
    reads: PipelinedClient
    """For scans and maintenance."""
    leases: PipelinedClient
    """For the calls that take, extend and hand over leases: they never wait behind the work of a thousand groups."""
    notices: Notices
    """Wakes who waits for a lease, or for the schedules."""
    changed: Callable[[], None]
    """Writes soon what the replica says of itself."""
    server_ms: Callable[[], int]
    """Returns about what the server's clock says now, for people."""
    watched: int = 0
    """How many groups the replica may serve."""
    wheel: Wheel = field(default_factory=Wheel)
    tasks: Tasks = field(default_factory=Tasks)
