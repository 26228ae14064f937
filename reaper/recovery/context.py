"""What the watches of one term share."""

from collections.abc import Callable
from dataclasses import dataclass

from redis.asyncio import Redis

from reaper.election.elector import Elector, EndOfTerm, Term
from reaper.settings import ReaperSettings
from workers.runtime.callbacks import Callbacks
from workers.runtime.clock import monotonic_ms
from workers.runtime.grace import Grace
from workers.runtime.notices import Notices


@dataclass(frozen=True, slots=True)
class TermContext:
    """One term, and what its watches work with."""

    client: Redis
    settings: ReaperSettings
    term: Term
    elector: Elector
    grace: Grace
    callbacks: Callbacks[str]
    end: Callable[[EndOfTerm], None]
    """Ends the term."""
    notices: Notices
    """Wakes who waits for the schedules."""

    def server_ms(self) -> int:
        """Return about what the server's clock says now: for people, and to bound how late a call may run."""
        return monotonic_ms() + self.elector.clock_offset_ms
