"""The scripts that act for a whole group. A replica calls them with its lease, embedded workers without one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.protocol.calls import CALL_BYTES, Client, GroupCalls
from workers.protocol.calls.recovery import Recovery, read_recovery
from workers.protocol.calls.refusals import Refusal, read_refusal
from workers.protocol.messages import text
from workers.protocol.scripts import Keys, Words, load_script

RECOVER = load_script("workers.protocol", "recover")
MOVE_DUE = load_script("workers.protocol", "move_due")
MAINTAIN_GROUP = load_script("workers.protocol", "maintain_group")

PAGE = 500
"""Pending entries that one call of an embedded worker looks at."""
MOVE_BATCH = 200
"""Due jobs that one call makes ready, of each schedule."""
QUARANTINE_SCORE = 2**52
"""Quarantined jobs are in the schedule of their group at this score and above, behind every due time."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The right to act for a group. The scripts compare ``holder`` with the lease, and do not act if it differs."""

    holder: str = ""
    token: int = 0
    """For people: it tells terms apart."""


NO_LEASE = Authority()
"""The authority of embedded workers. They hold no lease, and act while recovery of the group is embedded."""


@dataclass(frozen=True, slots=True)
class DueMoves:
    """The result of a look at the schedules and the quarantined jobs."""

    next_due_ms: int | None = None
    """Time until the next job is due; 0 = call again, None = none is scheduled."""
    quarantined: int = 0
    out: int = 0
    """Released jobs that are not settled."""
    jobs: tuple[tuple[bytes, bytes], ...] = ()
    """Job ID and new entry ID of the quarantined jobs that this call released."""
    settled: int = 0
    """Released jobs that are settled since the last call."""
    held: int = 0
    """Due jobs that cannot be made ready; ``why``: the reason of the last one."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """The findings of a cleanup of a group."""

    deleted: tuple[bytes, ...]
    """Consumers that were silent, and are gone."""
    groups_lost: int
    """How often the group was found to be destroyed and made again, since it was first served."""
    lost: tuple[bytes, ...] = ()
    """Consumers of workers that a third party deleted, and whose workers have not come back; reported once."""
    unread_ms: int = 0
    """For how long jobs have been ready while no consumer read and none had a delivery; 0 = not at all."""


@dataclass(frozen=True, slots=True)
class GroupMoves(GroupCalls):
    """The scripts that act for one group."""

    authority: Authority = NO_LEASE

    async def recover(self, client: Client, source: str, ids: Iterable[bytes]) -> Recovery | Refusal:
        """Recover what of these entries is overdue, as the holder of the lease (``recover.lua``)."""
        return await self._recover(client, source, *ids)

    async def recover_page(self, client: Client, source: str, *, consumer: str, page: str) -> Recovery | Refusal:
        """Recover what is overdue on a page, as the embedded worker ``consumer``."""
        return await self._recover(client, source, consumer, page, PAGE)

    async def _recover(self, client: Client, source: str, *argv: str | bytes | int) -> Recovery | Refusal:
        reply: Any = await RECOVER.run(client, *self.spell_for_all(source, CALL_BYTES, *argv))
        return read_recovery(reply) if reply[0] == b"ok" else read_refusal(reply)

    async def move_due(self, client: Client) -> DueMoves | Refusal:
        """Make due jobs ready, and release a quarantined one (``move_due.lua``)."""
        words = self.spell_for_all(self.keys.stream, MOVE_BATCH, more_keys=(self.keys.stream_schedule,))
        reply: Any = await MOVE_DUE.run(client, *words)
        if reply[0] != b"ok":
            return read_refusal(reply)
        _, next_ms, quarantined, out, released, settled, held, why = reply
        jobs = ((released[0], released[1]),) if released else ()
        return DueMoves(next_ms if next_ms >= 0 else None, quarantined, out, jobs, settled, held, text(why))

    async def maintain(self, client: Client, *, silence_ms: int | None) -> CleanupResult | Refusal:
        """Note the group's position, and delete consumers that were silent for longer (``maintain_group.lua``)."""
        reply: Any = await MAINTAIN_GROUP.run(client, *self.spell_for_all(self.keys.stream, silence_ms or ""))
        if reply[0] != b"ok":
            return read_refusal(reply)
        _, deleted, groups_lost, unread_ms, *names = reply
        return CleanupResult(tuple(names[:deleted]), groups_lost, tuple(names[deleted:]), unread_ms)

    def spell_for_all(self, source: str, *argv: str | bytes | int, more_keys: Sequence[str] = ()) -> tuple[Keys, Words]:
        """Return the keys and arguments of a call that acts for the whole group, and names its authority."""
        words = (self.authority.holder, self.authority.token, *argv)
        return self.spell(source, *words, more_keys=(self.keys.lease, *more_keys))
