"""Replicas with intervals that a test chooses, for example a lease of an hour with five renewals per second.

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

    renew_interval: Seconds | None = None
    trust_window: Seconds | None = None
    acquire_retry_interval: Seconds | None = None
    heartbeat_interval: Seconds | None = None
    scan_interval: Seconds | None = None

    @property
    def renew(self) -> timedelta:
        """The time between two renewals."""
        return self.renew_interval or super().renew

    @property
    def trust(self) -> timedelta:
        """How long a renewal is trusted."""
        return self.trust_window or super().trust

    @property
    def acquire_retry(self) -> timedelta:
        """A follower's longest wait between two attempts."""
        return self.acquire_retry_interval or super().acquire_retry

    @property
    def heartbeat(self) -> timedelta:
        """The time between two registrations."""
        return self.heartbeat_interval or super().heartbeat

    def scan_interval_of(self, group: WatchedGroup) -> timedelta:
        """The time between two tail scans of ``group``."""
        if self.scan_interval is None:
            return super().scan_interval_of(group)
        return min(self.scan_interval, group.visibility_timeout / 4)


if __name__ == "__main__":
    reaper.settings.ReaperSettings = PacedSettings  # type: ignore[misc]  # before the commands are imported
    from reaper.__main__ import main

    main()
