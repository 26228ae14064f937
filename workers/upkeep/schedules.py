"""Makes due jobs ready, from a group's delayed retries and its stream's delayed enqueues.

It does not poll. The script returns when the next job is due, and a process that schedules an earlier one wakes us.
Both are hints, and the schedules are the truth. So we also look now and then without a hint.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import anyio

from workers.protocol.calls.group_moves import DueMoves
from workers.protocol.calls.refusals import Refusal
from workers.protocol.keys import GroupKeys
from workers.runtime.notices import Notices

LATEST_LOOK_S = 5.0
"""Insurance: we look at least this often, should a notice ever be missed."""


class Schedules:
    """One group's schedules, looked after by one process."""

    def __init__(
        self,
        move_due: Callable[[], Awaitable[DueMoves | Refusal]],
        moved: Callable[[DueMoves], None],
        wake_quarantine: Callable[[], None],
        *,
        jitter_s: float = 0.0,
    ) -> None:
        """``moved`` is called after each look, and ``wake_quarantine`` if jobs are quarantined.

        ``jitter_s`` is the longest random delay, if many look after the same group.
        """
        self._move_due = move_due
        self._moved = moved
        self._wake_quarantine = wake_quarantine
        self._jitter_s = jitter_s
        self._noticed = anyio.Event()

    def woken_by(self, notices: Notices, keys: GroupKeys) -> AbstractContextManager[None]:
        """While the block runs, look as soon as a process says that it has scheduled an earlier job."""
        return notices.waking(self.wake, (keys.schedule, keys.stream_schedule))

    def wake(self) -> None:
        """Look at once, because an earlier job may be scheduled."""
        self._noticed.set()

    async def step(self) -> Refusal | None:
        """Make due jobs ready, and wait until more are due, or return why the script rejected the call.

        Raises what redis-py raises.
        """
        self._noticed = anyio.Event()  # before the look, because a job that is scheduled after it wakes us again
        moved = await self._move_due()
        if isinstance(moved, Refusal):
            return moved
        self._moved(moved)
        if moved.quarantined:
            self._wake_quarantine()
        pause_s = self._pause_s(moved.next_due_ms)
        with anyio.move_on_after(pause_s):
            await self._noticed.wait()
        return None

    def _pause_s(self, next_due_ms: int | None) -> float:
        if next_due_ms is None:
            return LATEST_LOOK_S
        late_s = random.uniform(0, self._jitter_s) if next_due_ms else 0.0
        return min(LATEST_LOOK_S, next_due_ms / 1000 + late_s)
