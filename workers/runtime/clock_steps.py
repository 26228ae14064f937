"""Notices that the server's clock was set, by comparing it with our own monotonic one. Pure.

Redis tells idle times by its wall clock. Set ahead by an hour, it says of every delivery that it has shown no life for
an hour longer than is true. Whoever has seen the clock before and after knows by how much, and since the step itself
took no time, of which deliveries: those that were touched before it, by what the clock showed then.
"""

from collections.abc import Iterable

from workers.protocol.calls import Step

CLOCK_JUMP_MS = 5_000
"""Less than this may be a slow answer."""
MOST_STEPS = 8
"""So many are remembered, the latest: one matters until a visibility timeout after it has passed."""


def idle_without(steps: Iterable[Step], idle_ms: int, now_ms: int) -> int:
    """Take ``steps`` ahead out of an idle time that the server told at ``now_ms`` (its time): as its scripts do."""
    touched_ms = now_ms - idle_ms
    return idle_ms - sum(step.by_ms for step in steps if touched_ms <= step.before_ms)


class ClockSteps:
    """How the server's clock was set, as far as one process has seen it. Instants are local monotonic milliseconds."""

    def __init__(self) -> None:
        self._offset: int | None = None
        self._ahead: tuple[Step, ...] = ()

    @property
    def ahead(self) -> tuple[Step, ...]:
        """The steps ahead that count, in order, less what was taken back since. For any thread."""
        return self._ahead

    def seen(self, now_ms: int, server_ms: int) -> int:
        """Note what time the server has; return by how much its clock was set since the last look (0 = it was not).

        Answers that were long on their way must not be told here: they would look like a step back, and the next one
        like one ahead.
        """
        before, self._offset = self._offset, server_ms - now_ms
        if before is None or abs(self._offset - before) <= CLOCK_JUMP_MS:
            return 0
        jump = self._offset - before
        if jump > 0:
            self._ahead = (*self._ahead, Step(now_ms + before, jump))[-MOST_STEPS:]
        else:
            self._take_back(-jump)
        return jump

    def _take_back(self, by_ms: int) -> None:
        """Note a step back: most are the end of a step ahead. What is idle for less than nothing is no case of ours."""
        left = list(self._ahead)
        while left and by_ms > 0:
            last = left.pop()
            if last.by_ms > by_ms:
                left.append(last._replace(by_ms=last.by_ms - by_ms))
            by_ms -= last.by_ms
        self._ahead = tuple(left)
