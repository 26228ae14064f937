"""The scripts that act for a whole group. A replica calls them with its lease, embedded workers without one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from workers.protocol.calls import CALL_BYTES, Client, GroupCalls
from workers.protocol.calls.recovery import Recovery, read_recovery
from workers.protocol.calls.refusals import Refusal, read_refusal
from workers.protocol.scripts import Script, load_script

RECOVER = load_script("workers.protocol", "recover")
MOVE_DUE = load_script("workers.protocol", "move_due")
MAINTAIN_GROUP = load_script("workers.protocol", "maintain_group")

PAGE = 500
"""Pending entries that one call of an embedded worker looks at."""
MOVE_BATCH = 200
"""Due jobs that one call makes ready, of each schedule."""
QUARANTINE_SCORE = 2**52
"""Quarantined jobs are in the schedule of their group at this score and above, behind every due time."""

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Authority:
    """The right to act for a group, in one term. The scripts do not act if ``holder`` differs from the lease."""

    holder: str = ""
    token: int = 0
    """For people: it tells terms apart."""


NO_LEASE = Authority()
"""The authority of embedded workers. They hold no lease, and act while recovery of the group is embedded."""


class DueMoves(NamedTuple):
    """The result of a look at the schedules and the quarantined jobs, in the order of ``move_due.lua``."""

    next_due_ms: int = -1
    """Time until the next job is due; 0 = call again, -1 = none is scheduled."""
    quarantined: int = 0
    out: int = 0
    """Released jobs that are not settled."""
    released: Sequence[bytes] = ()
    """Job ID and new entry ID of the quarantined job that this call released, if it did."""
    settled: int = 0
    """Released jobs that are settled since the last call."""
    held: int = 0
    """Due jobs that cannot be made ready; ``why``: the reason of the last one."""
    why: bytes = b""


class CleanupResult(NamedTuple):
    """The findings of a cleanup of a group, in the order of ``maintain_group.lua``."""

    deleted: Sequence[bytes]
    """Consumers that were silent, and are gone."""
    lost: Sequence[bytes]
    """Consumers of workers that a third party deleted, and whose workers have not come back; reported once."""
    groups_lost: int = 0
    """How often the group was found to be destroyed and made again, since it was first served."""
    unread_ms: int = 0
    """For how long jobs have been ready while no consumer read and none had a delivery; 0 = not at all."""


@dataclass(frozen=True, slots=True)
class GroupMoves(GroupCalls):
    """The scripts that act for one group."""

    authority: Authority = NO_LEASE

    async def recover(self, client: Client, source: str, ids: Iterable[bytes]) -> Recovery | Refusal:
        """Recover what of these entries is overdue, as the holder of the lease (``recover.lua``)."""
        return await self.run(RECOVER, read_recovery, client, source, CALL_BYTES, *ids)

    async def recover_page(self, client: Client, source: str, *, consumer: str, page: str) -> Recovery | Refusal:
        """Recover what is overdue on a page, as the embedded worker ``consumer``."""
        return await self.run(RECOVER, read_recovery, client, source, CALL_BYTES, consumer, page, PAGE)

    async def move_due(self, client: Client) -> DueMoves | Refusal:
        """Make due jobs ready, and release a quarantined one (``move_due.lua``)."""
        keys = self.keys
        return await self.run(MOVE_DUE, DueMoves, client, keys.stream, MOVE_BATCH, more_keys=(keys.stream_schedule,))

    async def maintain(self, client: Client, *, silence_ms: int | None) -> CleanupResult | Refusal:
        """Note the group's position, and delete consumers that were silent for longer (``maintain_group.lua``)."""
        return await self.run(MAINTAIN_GROUP, CleanupResult, client, self.keys.stream, silence_ms or "")

    async def run(
        self,
        script: Script,
        read: Callable[..., AnswerT],
        client: Client,
        source: str,
        *argv: str | bytes | int,
        more_keys: Sequence[str] = (),
    ) -> AnswerT | Refusal:
        """Run a script that acts for the whole group. ``read`` is called with the parts of its answer."""
        words = self.spell(
            source, self.authority.holder, self.authority.token, *argv, more_keys=(self.keys.lease, *more_keys)
        )
        code, *answer = await script.run(client, *words)
        return read(*answer) if code == b"ok" else read_refusal(code, *answer)
