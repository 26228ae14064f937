"""Embedded recovery is one more source of deliveries, beside reading. Only the workers look for stalled deliveries.

Each worker walks over the pending entries list of each source, one page per call. It keeps the cursor between calls, so
live deliveries at the front never hide dead ones behind them. It claims overdue deliveries for its free slots. If it
has no free slot, it makes them ready for all workers (see ``recover.lua``).

Nobody polls. A walk returns when the next delivery on its way is due. Later deliveries are due a whole visibility
timeout after their start or later. So the next walk starts at the earlier of the two moments.
"""

import logging
import random
from collections.abc import Callable, Sequence
from math import inf

from workers.embedded.telling import Telling
from workers.embedded.walk import LONGEST_SPACING_S, SHORTEST_SPACING_S, SPACING_PART, Walk
from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.held import Held, Source
from workers.loop.stalled import StalledDeliveries
from workers.protocol.calls.group_moves import GroupMoves
from workers.protocol.calls.recovery import START, Outcome, Page
from workers.protocol.calls.refusals import RecoveryWait, Refusal, RefusalKind, explained
from workers.protocol.connection import KeptConnection
from workers.protocol.log_fields import fields
from workers.protocol.messages import FIELD_VISIBILITY_MS, whole_number
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

PAGE_PAUSE_S = 0.005
"""Between pages of a walk: a long list of deliveries that live is no reason to hurry."""
REFUSED_S = 1.0
"""Pause after a call that was refused."""


class Autoclaim(WorkerPart, StalledDeliveries):
    """Decides what a worker of an embedded group recovers, and when."""

    def __init__(self, context: WorkerContext, quarantine_waits: Callable[[], None]) -> None:
        """``quarantine_waits`` is called if the group has quarantined jobs, or released ones."""
        super().__init__(context)
        self._connection = KeptConnection(context.commands)
        self._quarantine_waits = quarantine_waits
        self._telling = Telling(context)
        self._moves = GroupMoves.of(context.settings.keys, context.journal)
        self._walks = {source.key: Walk(source) for source in context.membership.both}
        self._not_before = 0.0
        self._waits_until = -inf
        self._reason = ""
        self._warns_of_visibility = True

    # ---- when

    def due_in_s(self, free: int) -> float:  # noqa: ARG002
        """Return the seconds until the next look, or inf while a reaper recovers."""
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

    async def take(self, room: int) -> list[Held]:
        """Recover the overdue deliveries of the next page. Return the ones that are ours now, at most ``room``.

        Raises what redis-py raises. A call with a lost reply may have claimed deliveries. The worker finds them when it
        takes stock (`workers.loop.adoption`), or they are due again.
        """
        walk, asked_at = self._walk_to_go_on(), monotonic()
        if walk is None:
            return []
        page = await self._call(walk, room)
        if isinstance(page, Refusal):
            await self._refused(page)
            return []
        if self._is_new(""):
            logger.warning("recovery resumed: %s", fields(group=self._settings.keys.pair))
        self._membership.heard(page.server_ms, asked_at)
        self._advance(walk, page)
        if any(row.outcome is Outcome.QUARANTINED for row in page.results):
            self._quarantine_waits()
        self._telling.page(walk.source, page)
        return self._deliveries(walk.source, page, asked_at)

    def put_off(self, pause_s: float) -> None:
        """Request no page for a while, because Redis rejected a call."""
        self._not_before = monotonic() + pause_s

    def _walk_to_go_on(self) -> Walk | None:
        """Return the walk whose turn it is, if it is due."""
        now = monotonic()
        if self._walk_due_in_s(now) > 0:
            return None
        _, walk = min(self._walks_now(now), key=lambda one: (one[0], one[1].due_at))
        if walk.cursor == START:
            walk.began = now
        return walk

    async def _call(self, walk: Walk, room: int) -> Page | Refusal:
        """Recover one page."""
        return await self._moves.recover_page(
            self._connection, walk.source.key, consumer=self._consumer, room=room, page=walk.cursor
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

    def _deliveries(self, source: Source, page: Page, asked_at: float) -> list[Held]:
        max_deliveries, now_ms = self._membership.agreement.max_deliveries, self._membership.now_ms()
        deliveries = [
            Held(source, one.entry_id, one.fields, one.times_delivered, max_deliveries, now_ms, asked_at)
            for one in page.claimed
        ]
        if source.kept:
            source.kept.difference_update(held.raw_entry_id for held in deliveries)
        self._reporter.claimed(deliveries, page, self._membership.visibility_s)
        return deliveries

    # ---- for the reader

    def were_delivered(self, deliveries: Sequence[Held]) -> None:
        """Reject a job's own visibility timeout with one warning, because the pending entries list shows no fields."""
        for held in deliveries if self._warns_of_visibility else ():
            asked_ms = whole_number(held.value_of(FIELD_VISIBILITY_MS), 0)
            if asked_ms:
                logger.warning(
                    "embedded recovery ignores the visibility timeout of a job (logged once): %s",
                    fields(job=held.id, requested_ms=asked_ms, visibility_s=self._membership.visibility_s),
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
                if self._is_new(refusal.kind):
                    command = f"reaper groups resume {self._settings.keys.word}"
                    logger.warning("recovery paused: %s", fields(group=pair, to_resume=command))
            case _:
                if self._is_new(refusal.detail):
                    logger.warning("recovery disabled: %s", fields(group=pair, cause=explained(refusal.detail)))

    def _waits(self, wait: RecoveryWait) -> None:
        """Log once a gap that recovery waits."""
        if self._not_before > self._waits_until + 1:
            logger.info("recovery waits for heartbeats: %s", fields(group=self._settings.keys.pair, **wait.facts()))
        self._waits_until = self._not_before

    def _is_new(self, reason: str) -> bool:
        """Note the reason why recovery does not act, or '' if it acts. Return whether that has changed."""
        is_new = reason != self._reason
        self._reason = reason
        return is_new
