"""A limit on recoveries per second and group: a token bucket of one second, pure."""


class RateLimit:
    """``per_second`` 0 = no limit. What a call overspends the next waits for."""

    def __init__(self, per_second: float) -> None:
        self._per_ms = per_second / 1000
        self._room = per_second
        self._most = per_second
        self._at_ms: int | None = None

    def most(self, batch: int, now_ms: int) -> int:
        """Return how large the next batch may be."""
        if not self._per_ms:
            return batch
        self._refill(now_ms)
        return max(1, min(batch, int(self._room)))

    def ready_at_ms(self, now_ms: int) -> int:
        """Return the instant from which at least one recovery is allowed."""
        if not self._per_ms:
            return now_ms
        self._refill(now_ms)
        return now_ms if self._room >= 1 else now_ms + round((1 - self._room) / self._per_ms) + 1

    def spend(self, recoveries: int) -> None:
        """Count what a call is about to do; a negative number gives back what it did not do."""
        if self._per_ms:
            self._room -= recoveries

    def _refill(self, now_ms: int) -> None:
        if self._at_ms is not None:
            self._room = min(max(self._most, 1), self._room + (now_ms - self._at_ms) * self._per_ms)
        self._at_ms = now_ms
