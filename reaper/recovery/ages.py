"""What a full scan says of the ages of deliveries: of those that are pending, and of those that are gone. Pure.

An age is the time since a delivery was handed out or last extended. Nothing tells the leader when a delivery was
settled, so an age at the end lies between two bounds: what it was at the last look, and what it would be now. Both are
told as powers of two, so that however many deliveries there are, an event of them stays small.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from reaper.recovery.timers import BUCKET_MS, Cohort, Sight


def at_least(age_ms: int) -> int:
    """Return the largest power of two that is not above ``age_ms``, or 0."""
    return 1 << (age_ms.bit_length() - 1) if age_ms > 0 else 0


def below(age_ms: int) -> int:
    """Return the smallest power of two above ``age_ms``."""
    return 1 << max(0, age_ms).bit_length()


class Ages:
    """What is known of one source's ages since somebody last asked, or of several sources together."""

    def __init__(self, visibility_ms: int = 0) -> None:
        self.oldest_ms = 0
        self.pending: Counter[int] = Counter()
        """Number of pending deliveries by the least age they have, as of the last full scan."""
        self.gone: Counter[tuple[int, int | None]] = Counter()
        """Number of deliveries that somebody settled, by the bounds of their age at the end."""
        self._visibility_ms = visibility_ms

    def scanned(self, cohorts: Iterable[Cohort], now_ms: int, oldest_ms: int) -> None:
        """A full scan found ``cohorts`` pending; ``oldest_ms`` is the highest age it was told of overdue ones."""
        self.pending.clear()
        self.oldest_ms = oldest_ms
        for cohort in cohorts:
            age = 0 if cohort.sight is Sight.UNSURE else self._visibility_ms
            if cohort.sight is Sight.DATED:
                age = self._age(cohort, now_ms)
                self.oldest_ms = max(self.oldest_ms, age)
            self.pending[at_least(age)] += cohort.timers

    def add_gone(self, cohort: Cohort, now_ms: int) -> None:
        """Count deliveries that are not pending any more; not those that we may have ended ourselves."""
        if cohort.sight is Sight.OVERDUE:
            self.gone[at_least(self._visibility_ms), None] += cohort.timers
        elif cohort.sight is Sight.DATED:
            least, most = self._age(cohort, cohort.seen_ms), self._age(cohort, now_ms)
            self.gone[at_least(least), below(most + BUCKET_MS)] += cohort.timers

    def _age(self, cohort: Cohort, moment_ms: int) -> int:
        return max(0, moment_ms - (cohort.due_ms - self._visibility_ms))

    def as_data(self) -> dict[str, Any]:
        """Return what the event ``scanned`` says of them."""
        bounds = sorted(self.gone, key=lambda bounds: (bounds[0], bounds[1] or float("inf")))
        return {
            "pending": self.pending.total(),
            "oldest_idle_ms": self.oldest_ms,
            "pending_ages": [[age, self.pending[age]] for age in sorted(self.pending)],
            "gone": self.gone.total(),
            "gone_ages": [[least, most, self.gone[least, most]] for least, most in bounds],
        }


def take_together(sources: Iterable[Ages]) -> Ages:
    """Return the ages of several sources as one, and forget there what is gone: it is told once."""
    total = Ages()
    for ages in sources:
        total.oldest_ms = max(total.oldest_ms, ages.oldest_ms)
        total.pending.update(ages.pending)
        total.gone.update(ages.gone)
        ages.gone.clear()
    return total
