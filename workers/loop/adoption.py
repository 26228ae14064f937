"""Adopts deliveries that no process runs.

Deliveries of an earlier process with the same worker name become overdue, so that the next recovery gets them. Our own
deliveries whose read had no answer are read again, page by page, when slots are free.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

from workers.loop.context import WorkerContext, WorkerPart
from workers.loop.in_flight import Delivery, Source
from workers.protocol.calls import CountedEntry
from workers.protocol.calls.group_moves import START
from workers.protocol.calls.membership import delete_consumers
from workers.protocol.keys import NONCE_BYTES
from workers.protocol.log_fields import fields
from workers.protocol.messages import text
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Sweep:
    """A scan of the pending entries of ``owner`` in ``source``."""

    source: Source
    owner: str
    start: str = START
    """The start of the next page."""


def is_earlier_process(consumer: str, name: str, ours: str) -> bool:
    """Return whether ``consumer`` is another process of the worker ``name``."""
    return consumer != ours and re.fullmatch(rf"{re.escape(name)}~[0-9a-f]{{{NONCE_BYTES * 2}}}", consumer) is not None


class Adoption(WorkerPart):
    """Scans for deliveries to adopt."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._moves = context.moves
        self._sweeps: list[Sweep] = []
        self._not_before = 0.0

    # ---- plans

    async def look_for_earlier_processes(self) -> None:
        """Plan to make deliveries of earlier processes overdue. Raises redis-py's errors."""
        for source in self._membership.sources:
            rows = await self._commands.xinfo_consumers(source.key, self._settings.group)
            earlier = {
                text(row["name"]): row["pending"]
                for row in rows
                if is_earlier_process(text(row["name"]), self._settings.base_name, self._consumer)
            }
            await delete_consumers(self._commands, source.key, self._settings.keys, list(earlier))
            for owner, pending in earlier.items():
                if pending:
                    logger.info(
                        "adopting deliveries of an earlier process: %s",
                        fields(group=self._settings.keys.name, consumer=owner, deliveries=pending),
                    )
                    self._sweeps.append(Sweep(source, owner))

    def take_stock(self) -> None:
        """Plan to scan for our own unknown deliveries in each stream that is there, first and from its start."""
        sources = self._membership.sources
        others = [one for one in self._sweeps if one.owner != self._consumer and one.source in sources]
        self._sweeps = [*(Sweep(source, self._consumer) for source in sources), *others]

    def put_off(self, pause_s: float) -> None:
        """Pause, because Redis denied a call. Then scan again."""
        self._not_before = monotonic() + pause_s
        self.take_stock()

    @property
    def is_due(self) -> bool:
        """Return whether to scan now."""
        return bool(self._sweeps) and monotonic() >= self._not_before

    # ---- scans

    async def take(self, room: int) -> list[Delivery]:
        """Scan one page. Return at most ``room`` unknown deliveries of ours. Raises redis-py's errors."""
        sweep, asked_at = self._sweeps[0], monotonic()
        is_ours = sweep.owner == self._consumer
        sweep.start, found = await self._moves.adopt(
            self._commands,
            sweep.source.key,
            sweep.source.in_flight() if is_ours else (),
            owner=sweep.owner,
            most=room if is_ours else 0,
            page=sweep.start,
        )
        if not sweep.start:
            self._sweeps.remove(sweep)
        return self.deliveries(sweep.source, found, asked_at)

    def deliveries(self, source: Source, found: Iterable[CountedEntry], asked_at: float) -> list[Delivery]:
        """Make deliveries of entries with their counts, except those that are in flight here (rule W5)."""
        limit, now_ms = self._membership.group_settings.max_deliveries, self._membership.now_ms()
        return [
            Delivery(source, entry_id, flat, times, limit, now_ms, asked_at)
            for entry_id, flat, times in found
            if not source.comes_again(entry_id, times, asked_at)
        ]

    async def leave(self) -> None:
        """Remove our own consumer if it has no pending entries. Raises redis-py's errors."""
        for source in self._membership.sources:
            await delete_consumers(self._commands, source.key, self._settings.keys, [self._consumer])
