"""Replicas with intervals that a test chooses, for example a lease of an hour with five ticks per second.

The product derives these intervals from the lease's TTL. Run as a program, this is `reaper` with a flag for each of
them.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import reaper.settings
from reaper.settings import ReaperSettings, WatchedGroup
from workers.runtime.settings import Seconds


class PacedSettings(ReaperSettings):
    """Settings of a replica. An interval that is None is the product's."""

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...

    tick_interval: Seconds | None = None
    registration_interval: Seconds | None = None
    heartbeat_interval: Seconds | None = None
    discovery_interval: Seconds | None = None

    def tick_of(self, group: WatchedGroup) -> timedelta:
        """The time between two ticks of ``group``."""
        if self.tick_interval is None:
            return super().tick_of(group)
        return min(self.tick_interval, group.visibility_timeout / 4)

    @property
    def registration(self) -> timedelta:
        """The time between two registrations."""
        return self.registration_interval or super().registration

    @property
    def heartbeat(self) -> timedelta:
        """The time between two heartbeats."""
        return self.heartbeat_interval or super().heartbeat

    @property
    def discovery(self) -> timedelta:
        """The given time, or the product's."""
        return self.discovery_interval or super().discovery


if __name__ == "__main__":
    reaper.settings.ReaperSettings = PacedSettings  # type: ignore[misc]  # before the commands are imported
    from reaper.__main__ import main

    main()
