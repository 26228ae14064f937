"""Computes the delays of failed jobs."""

import random
from collections.abc import Callable
from dataclasses import dataclass

UNCOUNTED_MAX_AGE_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays of a worker's failed jobs, in ms. They grow exponentially up to a cap, with full jitter."""

    base_ms: int
    """The longest delay after the first failure. 0 = failed jobs are ready again at once."""
    cap_ms: int
    """No delay is longer."""
    uncounted_max_age_ms: int = UNCOUNTED_MAX_AGE_MS
    """Retries of a job that is older than this count, also with ``counts=False``."""

    def longest_ms(self, failures: int) -> int:
        """Return the longest delay after so many failures in a row (from 1)."""
        return min(self.cap_ms, self.base_ms << min(max(0, failures - 1), 62))

    def delay_ms(self, failures: int, jitter: Callable[[], float] = random.random) -> int:
        """Return the delay after so many failures in a row. ``jitter`` returns a part of the longest one, 0 to 1."""
        return round(self.longest_ms(failures) * jitter())


AT_ONCE = Backoff(base_ms=0, cap_ms=0, uncounted_max_age_ms=2**62)
"""No delay, and no job is too old for uncounted retries."""
