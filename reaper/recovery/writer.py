"""What the leader writes in a group: each call is one fenced script, typed on this side.

Those that workers make too, in embedded mode, are in `workers.protocol.calls`; they take the leader's authority.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import anyio
from redis.asyncio import Redis

from reaper.failpoints import failpoint
from reaper.settings import WatchedGroup
from workers.protocol.calls import CALL_BYTES, Journal
from workers.protocol.calls.moves import Moves
from workers.protocol.calls.recovery import Outcome, Recovered, refusal_of, rows_of
from workers.protocol.calls.refusals import LAYOUT_REFUSALS, Refusal, RefusalKind, read_refusal
from workers.protocol.calls.upkeep import Authority, Moved, Released, move_due, release_suspects
from workers.protocol.keys import RESTORED_CONSUMER, GroupKeys
from workers.protocol.messages import RecoveryMode, text, told, whole_number
from workers.protocol.scripts import load_script
from workers.runtime.settings import to_ms

SHIELD_S = 30.0
"""Bounds a write that was begun: it is let finish when the term ends, so that its result is known. It is fenced."""

NOTHING_WAITS = b"-"
"""As ``put_back.lua`` takes it."""

Answer = TypeVar("Answer")

TAKE_OVER_GROUP = load_script("reaper", "take_over_group")
RESTORE_GROUP = load_script("reaper", "restore_group")
PUT_BACK = load_script("reaper", "put_back")


class TakeOverCode(IntEnum):
    """What came of taking a group over. Numbers as in ``take_over_group.lua``."""

    INSTALLED = 1
    TOKEN_BEHIND = 2
    FOREIGN_NAMESPACE = 3


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Answer to taking a group over. ``detail``: why the policy cannot work here, or what was found there."""

    code: TakeOverCode
    detail: str
    before: tuple[str, ...] = ()
    """What was agreed before: policy, visibility timeout in ms, max_deliveries, recovery mode."""
    made: int = 0
    """When the group was made, by the server's clock in ms; 0 = not by us."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of a group that was destroyed."""

    put_back: int
    made: int
    """When it was made, by the server's clock in ms."""
    by_worker: bool
    """A worker had made it again already."""


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of deliveries whose consumer somebody deleted."""

    put_back: int
    in_doubt: int
    """Nobody can know whether they were acknowledged or dropped; nothing was done."""


@dataclass(frozen=True, slots=True)
class StillCounts:
    """The word of a deleted consumer still counts: its worker may live, and nothing was put back."""

    until_ms: int
    """Until when, by the server's clock."""
    visibility_ms: int
    """What the worker lives by."""


@dataclass(frozen=True, slots=True)
class GroupWriter:
    """Writes of one term in one group. All methods raise what redis-py raises; all are fenced."""

    client: Redis
    group: WatchedGroup
    authority: Authority
    journal: Journal

    @property
    def keys(self) -> GroupKeys:
        """The group's keys."""
        return self.group.keys

    async def take_over(self) -> TakeOver:
        """Install the fence and write the agreement (``take_over_group.lua``)."""
        failpoint("take_over.before_write")
        keys, group, authority = self.keys, self.group, self.authority
        code, detail, *agreed = await TAKE_OVER_GROUP.run_idempotent(
            self.client,
            [keys.stream, keys.fence, keys.agreement, keys.retry],
            [
                authority.namespace, authority.token, authority.holder, group.group, group.redelivery,
                to_ms(group.visibility_timeout), group.max_deliveries, RecoveryMode.REAPER, authority.serves_for_ms,
            ],
        )  # fmt: skip
        *before, made = agreed or (0,)
        return TakeOver(TakeOverCode(code), told(detail), tuple(map(text, before)), made)

    async def recover(self, source: str, entry_ids: Sequence[bytes]) -> list[Recovered] | Refusal:
        """Recover what is overdue among ``entry_ids`` (ascending) of ``source`` (``recover.lua``).

        Returns what became of each.
        """
        moves, fence, token = Moves.of(self.keys, self.journal), self.authority.fence, self.authority.token
        found = await _finished(
            "recover",
            lambda: moves.recover(self.client, source, entry_ids, lease=fence, token=token, most_bytes=CALL_BYTES),
        )
        failpoint("recover.after_write")
        refusal = refusal_of(found)
        if refusal is not None:
            return refusal
        rows = list(rows_of(found))
        rows += [Recovered(entry_id, Outcome.NOT_DUE, left_ms) for entry_id, left_ms in found.due_in_ms]
        layout = [row.told for row in rows if row.outcome is Outcome.HELD and row.told in LAYOUT_REFUSALS]
        if layout and not found.events:
            return Refusal(RefusalKind.REFUSED, layout[0])
        other = Outcome.PUT_OFF if found.next_page else Outcome.GONE
        named = {row.entry_id for row in rows}
        return rows + [Recovered(entry_id, other) for entry_id in entry_ids if entry_id not in named]

    async def release_suspects(self) -> Released | Refusal:
        """Make the next suspect ready, if it may be out."""
        return await _finished(
            "suspects", lambda: release_suspects(self.client, self.keys, self.authority, self.journal)
        )

    async def move_due(self) -> Moved | Refusal:
        """Make ready what is due in the group's schedule and in its stream's."""
        return await _finished("schedule", lambda: move_due(self.client, self.keys, self.authority, self.journal))

    async def restore(self, entry_ids: Sequence[bytes], *, made: int, only_count: bool = False) -> Restored | Refusal:
        """Put these entries back as pending into the group that was destroyed since it was ``made``.

        It is made again where it stood, if nobody has yet (``restore_group.lua``). Or only count them.
        """
        keys = self.keys
        reply = await RESTORE_GROUP.run(
            self.client,
            [keys.stream, keys.fence, keys.agreement],
            [
                self.authority.fence, keys.group, "" if only_count else RESTORED_CONSUMER,
                to_ms(self.group.visibility_timeout), made, *entry_ids,
            ],
        )  # fmt: skip
        if reply[0] != b"ok":
            return read_refusal(reply)
        _, put_back, made_now, who = reply
        return Restored(put_back, made_now, who == b"worker")

    async def put_back(
        self, source: str, consumer: bytes, entry_ids: Sequence[bytes], *, made: int
    ) -> PutBack | StillCounts | Refusal:
        """Put back, or tell of, what somebody dropped by deleting ``consumer`` of ``source`` (``put_back.lua``).

        Without ``entry_ids`` this only asks whether that may be done.
        """
        return await self._put_back(source, consumer, entry_ids, made=made, what=b"")

    async def note_waiting(
        self, source: str, consumer: bytes, entry_ids: Sequence[bytes], *, made: int, journal_at: bytes
    ) -> None:
        """Note what waits until ``consumer`` cannot come back, for the leader that may follow; nothing: forget it."""
        what = journal_at if entry_ids else NOTHING_WAITS
        await self._put_back(source, consumer, entry_ids, made=made, what=what)

    async def noted_waiting(self, source: str, *, made: int) -> dict[bytes, tuple[bytes, list[bytes]]]:
        """Return by consumer what was noted, in a group ``made`` then: where the journal ended, and entry IDs."""
        prefix, noted = self._waiting_field(source, b""), {}
        fields: Any = await self.client.hgetall(self.keys.agreement)
        for field, value in fields.items():
            made_then, *rest = value.split(b" ")
            if field.startswith(prefix) and made_then == b"%d" % made and rest:
                noted[bytes(field).removeprefix(prefix)] = (rest[0], rest[1:])
        return noted

    def _waiting_field(self, source: str, consumer: bytes) -> bytes:
        return (b"dropped:" if source == self.keys.stream else b"dropped_retry:") + consumer

    async def _put_back(
        self, source: str, consumer: bytes, entry_ids: Sequence[bytes], *, made: int, what: bytes
    ) -> PutBack | StillCounts | Refusal:
        keys = self.keys
        reply = await PUT_BACK.run(
            self.client,
            [source, keys.fence, keys.agreement, keys.journal],
            [
                self.authority.fence, keys.group, consumer, to_ms(self.group.visibility_timeout),
                made, *self.journal, self.authority.token,
                self._waiting_field(source, consumer), what, *entry_ids,
            ],
        )  # fmt: skip
        if reply[0] == b"ok":
            return PutBack(*reply[1:])
        return StillCounts(*reply[1:]) if reply[0] == b"waits" else read_refusal(reply)

    async def consumers(self, source: str) -> dict[bytes, int]:
        """Return the group's consumers in ``source``, and for how many ms each has not asked for anything there."""
        return {row["name"]: int(row["idle"]) for row in await self.client.xinfo_consumers(source, self.keys.group)}

    async def is_served(self, server_ms: int) -> bool:
        """Tell whether a leader says that it serves the group at ``server_ms``."""
        until: Any = await self.client.hget(self.keys.agreement, "served_until")
        return whole_number(until, 0) > server_ms

    async def made_at(self) -> int:
        """Return when the group was made, by the server's clock in ms; 0 = not by us."""
        made: Any = await self.client.hget(self.keys.agreement, "made")
        return whole_number(made, 0)


async def _finished(what: str, write: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make a write, and let it finish once begun: a term that ends meanwhile must know what became of it.

    The fence decides. Raises what redis-py raises.
    """
    failpoint(f"{what}.before_write")
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + SHIELD_S):
        return await write()
    raise TimeoutError(f"no answer for {SHIELD_S:g} s")
