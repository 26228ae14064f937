"""Embedded recovery is one more source of deliveries, beside reading. Only the workers look for stalled deliveries.

Each worker walks over the pending entries list of each source, one page per call. It keeps the cursor between calls, so
live deliveries at the front never hide dead ones behind them. It claims overdue deliveries for its free slots. If it
has no free slot, it makes them ready for all workers (see ``recover.lua``).

Nobody polls. A walk returns when the next delivery on its way is due. Later deliveries are due a whole visibility
timeout after their start or later. So the next walk starts at the earlier of the two moments.

During a mass recovery, the next page is requested before the last one is unpacked, so that server and worker work in
parallel. A call claims at most half of the slots, so that one half runs while the other half is claimed.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from anyio.lowlevel import cancel_shielded_checkpoint

from workers.embedded.telling import Telling
from workers.embedded.walk import LONGEST_SPACING_S, SHORTEST_SPACING_S, SPACING_PART, Walk
from workers.loop.context import Part, WorkerContext
from workers.loop.held import Held, Source
from workers.loop.stalled import StalledDeliveries
from workers.protocol.calls.beat import RecoveryWait
from workers.protocol.calls.group_moves import GroupMoves
from workers.protocol.calls.recovery import START, Outcome, Page, recover_page
from workers.protocol.calls.refusals import Refusal, RefusalKind, explained
from workers.protocol.connection import KeptConnection
from workers.protocol.messages import FIELD_VISIBILITY_MS, whole_number
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

LEAST_CLAIM = 64
"""Slots that one call may fill at least: smaller calls cost the server more than waiting for the worker does."""
PAGE_PAUSE_S = 0.005
"""Between pages of a walk: a long list of deliveries that live is no reason to hurry."""
REFUSED_S = 1.0
"""Pause after a call that was refused."""


class _Call(NamedTuple):
    """A page that is being asked for."""

    walk: Walk
    sent: float
    """When the call was made, monotonic."""
    reply: "asyncio.Task[Page | Refusal]"


class Autoclaim(Part, StalledDeliveries):
    """Decides what a worker of an embedded group recovers, and when."""

    def __init__(self, context: WorkerContext, quarantine_waits: Callable[[], None]) -> None:
        """``quarantine_waits`` is called if the group has quarantined jobs, or released ones."""
        super().__init__(context)
        self._connection = KeptConnection(context.commands)
        self._quarantine_waits = quarantine_waits
        self._telling = Telling(context)
        self._moves = GroupMoves.of(context.settings.keys, context.journal)
        self._walks = {source.key: Walk(source) for source in context.membership.both}
        self._most = max(LEAST_CLAIM, context.settings.concurrency // 2)
        self._ahead: _Call | None = None
        self._asked_at = 0.0
        """When the call was made that the last deliveries came of, monotonic."""
        self._not_before = 0.0
        self._waits_until = -inf
        self._standing_by = ""
        self._warns_of_visibility = True

    # ---- when

    def due_in_s(self, free: int) -> float:  # noqa: ARG002
        """Return the seconds until the next look, or inf while a reaper recovers."""
        if self._ahead:
            return 0.0
        if not self._membership.recovers:
            return inf
        return self._walk_due_in_s(monotonic())

    def _walk_due_in_s(self, now: float) -> float:
        return max(self._not_before - now, min(due_in_s for due_in_s, _ in self._walks_now(now)))

    def _walks_now(self, now: float) -> list[tuple[float, Walk]]:
        """Return the walks with the time until their next calls."""
        visibility_s = self._membership.visibility_s
        walks = [self._walks[source.key] for source in self._membership.sources]
        return [(walk.due_in_s(now, visibility_s), walk) for walk in walks]

    # ---- doing it

    @property
    def is_under_way(self) -> bool:
        """Return whether a page was requested and not taken yet.

        `take` must follow, because the call may have claimed.
        """
        return self._ahead is not None

    async def take(self, room: int, room_ahead: Callable[[], int]) -> list[Held]:
        """Recover the overdue deliveries of the next page. Return the ones that are ours now, at most ``room``.

        If there are more, the next page is requested at once, for as many deliveries as ``room_ahead`` says. Those
        slots are reserved until the next `take`.

        Raises what redis-py raises. A call with a lost reply may have claimed deliveries. The worker finds them when it
        takes stock (`workers.loop.adoption`), or they are due again.
        """
        call = await self._next_call(room)
        if call is None:
            return []
        walk, page = call
        if isinstance(page, Refusal):
            await self._refused(page)
            return []
        self._stand_by("")
        self._membership.heard(page.server_ms, self._asked_at)
        self._advance(walk, page)
        if page.claimed and page.cursor:
            await self._ask_ahead(walk, room_ahead() - len(page.claimed))
        if any(row.outcome is Outcome.QUARANTINED for row in page.results):
            self._quarantine_waits()
        self._telling.page(walk.source, page)
        return self._deliveries(walk.source, page)

    def put_off(self, pause_s: float) -> None:
        """Request no page for a while, because Redis rejected a call."""
        self._not_before = monotonic() + pause_s

    def abandon(self) -> None:
        """Stop waiting for a requested page, because the process is about to end."""
        if self._ahead:
            self._ahead.reply.cancel()
            self._ahead = None

    async def _next_call(self, room: int) -> tuple[Walk, Page | Refusal] | None:
        """Return the reply to the next call, or None if no call is due."""
        call, self._ahead = self._ahead, None
        if call is not None:
            self._asked_at = call.sent
            return call.walk, await call.reply
        walk = self._walk_to_go_on()
        if walk is None:
            return None
        self._asked_at = monotonic()
        return walk, await self._call(walk, room)

    def _walk_to_go_on(self) -> Walk | None:
        """Return the walk whose turn it is, if it is due."""
        now = monotonic()
        if self._walk_due_in_s(now) > 0:
            return None
        _, walk = min(self._walks_now(now), key=lambda one: (one[0], one[1].due_at))
        if walk.cursor == START:
            walk.began = now
        return walk

    async def _ask_ahead(self, walk: Walk, room: int) -> None:
        """Ask for the page behind the one that has just come, if there is room for it."""
        if room > 0 and self._membership.recovers:
            reply = asyncio.get_running_loop().create_task(self._call(walk, room))
            self._ahead = _Call(walk, monotonic(), reply)
            await cancel_shielded_checkpoint()  # it is sent now

    async def _call(self, walk: Walk, room: int) -> Page | Refusal:
        """Recover one page."""
        return await recover_page(
            self._connection,
            self._moves,
            walk.source.key,
            consumer=self._consumer,
            room=min(room, self._most),
            cursor=walk.cursor,
        )

    def _advance(self, walk: Walk, page: Page) -> None:
        """Note how far the walk has come, and when it goes on."""
        now = monotonic()
        if page.soonest_ms is not None:
            walk.soonest = min(walk.soonest, now + page.soonest_ms / 1000)
        if page.cursor:
            walk.cursor = page.cursor
            walk.due_at = now + (0.0 if page.claimed or page.results else PAGE_PAUSE_S)
            return
        if self._telemetry:
            self._telemetry.walked(now - walk.began)
        visibility_s = self._membership.visibility_s
        spacing = min(max(visibility_s / SPACING_PART, SHORTEST_SPACING_S), LONGEST_SPACING_S)
        walk.due_at = max(now, min(walk.soonest, walk.began + visibility_s)) + random.uniform(0.5, 1) * spacing
        walk.cursor, walk.soonest = START, inf

    def _deliveries(self, source: Source, page: Page) -> list[Held]:
        max_deliveries, now_ms = self._membership.agreement.max_deliveries, self._membership.now_ms()
        asked_at = self._asked_at
        deliveries = [
            Held(source, one.entry_id, one.fields, one.times_delivered, max_deliveries, now_ms, asked_at)
            for one in page.claimed
        ]
        if source.kept:
            source.kept.difference_update(held.job.raw_entry_id for held in deliveries)
        self._reporter.claimed(deliveries, page, self._membership.visibility_s)
        return deliveries

    # ---- for the reader

    def were_delivered(self, deliveries: Sequence[Held]) -> None:
        """Reject a job's own visibility timeout with one warning, because the pending entries list shows no fields."""
        for held in deliveries if self._warns_of_visibility else ():
            asked_ms = whole_number(held.job.value_of(FIELD_VISIBILITY_MS), 0)
            if asked_ms:
                logger.warning(
                    "job %s asks for a visibility timeout of its own (reaper.visibility_ms = %d): in embedded mode "
                    "it has the group's, %g s, as every job. Said once",
                    held.job.id,
                    asked_ms,
                    self._membership.visibility_s,
                )
                self._warns_of_visibility = False
                return

    # ---- refusals

    async def _refused(self, refusal: Refusal) -> None:
        self._not_before = monotonic() + REFUSED_S
        pair = self._settings.keys.pair
        match refusal.kind:
            case RefusalKind.STALE | RefusalKind.UNKNOWN:
                await self._membership.join()
            case RefusalKind.WAITS if refusal.wait:
                self._not_before = monotonic() + refusal.wait.left_ms / 1000
                self._waits(refusal.wait)
            case RefusalKind.PAUSED:
                self._stand_by(f"{pair} is paused (`reaper groups resume {self._settings.keys.word}` ends it)")
            case _:
                self._stand_by(f"{pair}: recovery refuses to act: {explained(refusal.detail)}")

    def _waits(self, wait: RecoveryWait) -> None:
        """Log once a gap that recovery waits."""
        if self._not_before > self._waits_until + 1:
            logger.info("%s: %s", self._settings.keys.pair, wait)
        self._waits_until = self._not_before

    def _stand_by(self, why: str) -> None:
        if why != self._standing_by:
            self._standing_by = why
            logger.warning("%s", why or f"{self._settings.keys.pair}: recovery goes on")
