"""What systemd is told of a replica; `workers.runtime.service_manager` tells it."""

from collections.abc import Sequence

from reaper.service import Reaper
from reaper.web.vitals import ailments_of
from workers.runtime.health_server import Pulse


class ReaperCondition:
    """Reads, from another thread, what the replica's own loop writes."""

    def __init__(self, reaper: Reaper, pulse: Pulse) -> None:
        self._reaper = reaper
        self._pulse = pulse

    def ailments(self) -> Sequence[str]:
        """The same as for `/livez`."""
        return ailments_of(self._reaper, self._pulse)

    def is_ready(self) -> bool:
        """Ready: registered, as a follower too."""
        return self._reaper.has_registered

    def is_stopping(self) -> bool:
        """It was told to leave."""
        return self._reaper.is_stopping

    def summary(self) -> str:
        """Say whether it leads."""
        if self._reaper.is_stopping:
            return "leaving"
        term = self._reaper.term
        if term is not None:
            return f"leads, token {term.token}"
        return "follows" if self._reaper.has_registered else "starting"
