"""Makes ready what is due in a group's schedules: its delayed retries, and the delayed enqueues of its stream.

Nobody polls: the script says when the next job is due, and whoever schedules an earlier one wakes us. Both are hints;
the schedules are the truth, so we look by ourselves now and then as well.
"""

from collections.abc import Callable
from math import inf

import anyio
from redis.exceptions import RedisError, ResponseError

from reaper.failpoints import failpoint
from reaper.recovery.notes import GroupNotes
from reaper.recovery.source_watch import SHIELD_S
from reaper.recovery.writer import GroupWriter
from workers.protocol.calls.refusals import Refusal
from workers.runtime.notices import Notices

LATEST_LOOK_S = 5.0
"""Insurance: we look at least this often, should a notice ever be missed."""
LOOKS_PER_SIGN = 4
"""And so often in the time that a look says the group is served for: it is the sign of life for embedded workers."""
RETRY_S = 1.0
"""Pause after a call that failed, or that was refused."""
HELD_FOR_S = 25.0
"""A job that cannot be made ready is tried every 10 s (``move_due.lua``): none met for so long means that it passed."""
WHAT = "make due jobs ready"


class ScheduleWatch:
    """One group's schedules, for one term."""

    def __init__(
        self,
        writer: GroupWriter,
        notices: Notices,
        *,
        notes: GroupNotes,
        refused: Callable[[Refusal], None],
        wake_suspects: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._notices = notices
        self._notes = notes
        self._refused = refused
        self._wake_suspects = wake_suspects
        self._latest_look_s = min(LATEST_LOOK_S, writer.authority.serves_for_ms / 1000 / LOOKS_PER_SIGN)
        self._noticed = anyio.Event()
        self._last_held = float("-inf")

    async def run(self) -> None:
        """Make jobs ready when they are due, until cancelled."""
        channels = (self._writer.keys.schedule, self._writer.keys.stream_schedule)
        with self._notices.waking(self._wake, channels):
            while True:
                self._noticed = anyio.Event()  # before the look: what is scheduled after it wakes us again
                pause = await self._look()
                with anyio.move_on_after(pause):
                    await self._noticed.wait()

    def _wake(self) -> None:
        self._noticed.set()

    async def _look(self) -> float:
        """Move what is due; return how long to sleep."""
        try:
            failpoint("schedule.before_write")
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + SHIELD_S):
                moved = await self._writer.move_due()
        except (RedisError, OSError) as error:
            self._notes.failed(WHAT, error)
            return RETRY_S
        if isinstance(moved, Refusal):
            self._refused(moved)
            return RETRY_S
        self._tell(moved.held, moved.why)
        if moved.parked:
            self._wake_suspects()
        return min(self._latest_look_s, inf if moved.next_due_ms is None else moved.next_due_ms / 1000)

    def _tell(self, held: int, why: str) -> None:
        now = anyio.current_time()
        if held:
            self._last_held = now
            self._notes.failed(WHAT, ResponseError(f"some cannot be made ready, and are tried again: {why}"))
        elif now - self._last_held > HELD_FOR_S:
            self._notes.worked(WHAT)
