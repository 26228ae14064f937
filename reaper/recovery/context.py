"""What the watches of one term share."""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from redis.asyncio import Redis

from reaper.election.elector import Elector, EndOfTerm, Term
from reaper.settings import ReaperSettings
from workers.runtime.callbacks import Callbacks
from workers.runtime.clock import monotonic_ms
from workers.runtime.notices import Notices

SCANS_AT_A_TIME = 32
"""Half of the connections: what falls due in one group does not wait until a thousand others are scanned."""


@dataclass(frozen=True, slots=True)
class TermContext:
    """One term, and what its watches work with."""

    client: Redis
    settings: ReaperSettings
    term: Term
    elector: Elector
    callbacks: Callbacks[str]
    end: Callable[[EndOfTerm], None]
    """Ends the term."""
    notices: Notices
    """Wakes who waits for the schedules."""
    changed: Callable[[], None] = lambda: None
    """Has this replica register at once."""
    room: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(SCANS_AT_A_TIME))
    """For what is done for every group at once when a term begins, and again and again: taking over and scanning."""

    def server_ms(self) -> int:
        """Return about what the server's clock says now, for people."""
        return monotonic_ms() + self.elector.clock_offset_ms
