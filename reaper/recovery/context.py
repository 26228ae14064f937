"""What all groups of one replica share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from redis.asyncio import Redis

from reaper.batches import Batches
from reaper.settings import ReaperSettings
from workers.runtime.callbacks import Callbacks
from workers.runtime.notices import Notices

SCANS_AT_A_TIME = 32
"""Half of the connections: what falls due in one group does not wait until a thousand others are scanned."""


@dataclass(slots=True, eq=False)
class ReplicaContext:
    """One replica, and what its groups work with."""

    replica_id: str
    settings: ReaperSettings
    """As they are now: a reload replaces them."""
    client: Redis
    leases: Redis
    """For the calls that take, extend and hand over leases: they never wait behind the work of a thousand groups."""
    ticks: Batches
    """Sends the ticks of all groups."""
    notices: Notices
    """Wakes who waits for a lease, or for the schedules."""
    callbacks: Callbacks[str]
    changed: Callable[[], None]
    """Writes soon what the replica says of itself."""
    server_ms: Callable[[], int]
    """Returns about what the server's clock says now, for people."""
    watched: int = 0
    """How many groups the replica may serve."""
    room: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(SCANS_AT_A_TIME))
    """For what is done for every group at once, and again and again: taking leases, and scanning."""
