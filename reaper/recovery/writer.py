"""Writes of the holder of a lease in a group. Each call is one fenced script, typed on this side.

The calls that embedded workers make, too, are in `workers.protocol.calls`. They take the holder's authority.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import anyio
from redis.asyncio import Redis

from reaper.context import ReplicaContext
from reaper.failpoints import failpoint
from reaper.settings import WatchedGroup
from workers.protocol.calls.declined import UNSUPPORTED_LAYOUTS, Declined, DeclineReason
from workers.protocol.calls.group_moves import Authority, DueMoves, GroupMoves, Outcome, Recovered
from workers.protocol.messages import text, whole_number
from workers.protocol.scripts import load_script
from workers.runtime.clock import server_ms

SHIELD_S = 30.0
"""The longest time for a write that has begun, also if the term ends meanwhile. It is fenced."""

Answer = TypeVar("Answer")

REPORT_LOST = load_script("reaper", "report_lost")


class GroupWriter:
    """Writes of one term in one group. All are fenced. All methods raise redis-py's errors."""

    def __init__(self, context: ReplicaContext, group: WatchedGroup, authority: Authority) -> None:
        self.group = group
        self.keys = group.keys
        self.reads = context.reads
        """For scans and maintenance."""
        self.has_journal = context.settings.journal
        self.moves = GroupMoves(group.keys, context.settings.journal_limit, authority)
        """The scripts that embedded workers call, too."""
        self._client: Redis = context.recoveries

    async def recover(self, source: str, entry_ids: Sequence[bytes]) -> list[Recovered] | Declined:
        """Recover overdue ones of ``entry_ids`` (ascending) in ``source``. Return a row for each (``recover.lua``)."""
        found = await _finished("recover", lambda: self.moves.recover(self._client, source, entry_ids))
        failpoint("recover.after_write")
        if isinstance(found, Declined):
            return found
        rows = [*found.rows, *(Recovered(entry_id, Outcome.NOT_DUE, left_ms) for entry_id, left_ms in found.due_in_ms)]
        has_ended = any(row.outcome is not Outcome.HELD for row in found.rows)
        held = [text(row.detail) for row in rows if row.outcome is Outcome.HELD]
        layout = [why for why in held if why in UNSUPPORTED_LAYOUTS]
        if layout and not has_ended:
            return Declined(DeclineReason.UNSUPPORTED, layout[0])
        other = Outcome.PUT_OFF if found.next_page else Outcome.GONE
        named = {row.entry_id for row in rows}
        return rows + [Recovered(entry_id, other) for entry_id in entry_ids if entry_id not in named]

    def gone(self, entry_ids: Iterable[bytes]) -> None:
        """Note deliveries that are not pending any more, and were not recovered. Only an observer counts them."""

    async def move_due(self) -> DueMoves | Declined:
        """Make due jobs ready, and release a quarantined job if it may be released."""
        return await _finished("schedule", lambda: self.moves.move_due(self._client))

    async def report_lost(
        self, source: str, consumer: bytes, entry_ids: Sequence[bytes], *, is_certain: bool
    ) -> list[bytes] | Declined:
        """Report those of ``entry_ids`` that are delivered and not pending, and return them (``report_lost.lua``).

        ``consumer`` held them in ``source``.
        """
        return await self.moves.run(
            REPORT_LOST, lambda *lost: list(lost), self.reads, source, consumer, int(is_certain), *entry_ids
        )

    async def consumers(self, source: str) -> set[bytes]:
        """Return the group's consumers in ``source``."""
        return {row["name"] for row in await self.reads.xinfo_consumers(source, self.keys.group)}

    async def registrations(self, consumers: Sequence[bytes]) -> dict[bytes, int]:
        """Return for how many ms the registrations of workers count, by their consumer."""
        found: Any = await self.reads.hmget(self.keys.settings, [b"registration:" + consumer for consumer in consumers])
        now_ms = await server_ms(self.reads)
        fields = {consumer: value.split(b",") for consumer, value in zip(consumers, found, strict=True) if value}
        return {one: whole_number(words[0], 0) - now_ms for one, words in fields.items() if len(words) > 1}


async def _finished(what: str, write: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make a write, and let it finish once begun, so that its result is known. Raises redis-py's errors."""
    failpoint(f"{what}.before_write")
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + SHIELD_S):
        return await write()
    raise TimeoutError(f"no answer for {SHIELD_S:g} s")
