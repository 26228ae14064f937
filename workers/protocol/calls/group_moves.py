"""The scripts that act for a whole group. A replica calls them with its lease, embedded workers without one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from redis.asyncio import Redis

from workers.protocol.calls import CALL_BYTES, Client, CountedEntry, GroupCalls
from workers.protocol.calls.declined import Declined, read_declined
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import text
from workers.protocol.scripts import Script, load_script

RECOVER = load_script("workers.protocol", "recover")
MOVE_DUE = load_script("workers.protocol", "move_due")
MAINTAIN_GROUP = load_script("workers.protocol", "maintain_group")
LOOK_AT_GROUP = load_script("workers.protocol", "look_at_group")

MOVE_BATCH = 200
"""Due jobs that one call makes ready, of each schedule."""
QUARANTINE_SCORE = 2**52
"""Quarantined jobs are in the schedule of their group at this score and above, behind every due time."""

START = "-"
"""The cursor in front of the first entry."""

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Authority:
    """The right to act for a group, in one term. The scripts do not act if ``holder`` differs from the lease."""

    holder: str = ""
    token: int = 0
    """The number of the term, for logs and the journal."""


NO_LEASE = Authority()
"""The authority of embedded workers. They hold no lease, and act while recovery of the group is embedded."""


class Outcome(IntEnum):
    """The fate of one delivery."""

    GONE = 0
    """It is not pending any more."""
    REDELIVERED = 1
    QUARANTINED = 2
    DEAD_LETTERED = 3
    NOT_DUE = 4
    LOST_PAYLOAD = 5
    HELD = 6
    """It cannot be copied."""
    PUT_OFF = 7
    CLAIMED = 8
    """The embedded worker that called has it now."""


ENDED = frozenset({Outcome.REDELIVERED, Outcome.QUARANTINED, Outcome.DEAD_LETTERED, Outcome.CLAIMED})
"""The delivery was ended for its consumer."""
_OUTCOMES = {
    b"recovered": Outcome.REDELIVERED,
    b"quarantined": Outcome.QUARANTINED,
    b"dead_lettered": Outcome.DEAD_LETTERED,
    b"lost_payload": Outcome.LOST_PAYLOAD,
}


class Recovered(NamedTuple):
    """The result of one delivery. ``detail`` is the new entry or dead letter, the remaining ms, or a reason."""

    entry_id: bytes
    outcome: Outcome
    detail: bytes | int = b""
    idle_ms: int = 0
    consumer: bytes = b""
    job_id: bytes = b""
    delivery_count: int = 0
    traced: Sequence[bytes] | None = None
    """Of a traced job: traceparent, tracestate and generation."""


class Recovery(NamedTuple):
    """The results of a recovery call."""

    next_page: str
    """The cursor of the next page, or '' at the end. For a replica it is the first entry that was put off."""
    due_in_ms: Sequence[tuple[bytes, int]]
    """Entries that are not overdue yet."""
    rows: Sequence[Recovered]
    """Deliveries that were ended, and undeliverable ones."""
    claimed: Sequence[CountedEntry]
    """Entries with their counts, which are the caller's from now on."""


def read_recovery(
    next_page: bytes,
    due: list[Any],
    held: list[Any],
    events: list[Any],
    traced: list[Any],
    claimed: list[CountedEntry],
) -> Recovery:
    """Read the answer of ``recover.lua``, with events as in the journal, and undeliverable entries with reasons."""
    contexts = {row[0]: row[1:] for row in traced}
    ours = {row[0] for row in claimed}
    rows = [row for event in events for row in _rows_of_event(event, contexts, ours)]
    rows += [
        Recovered(entry_id, Outcome.HELD, why, consumer=consumer)
        for entry_id, consumer, why in zip(held[::3], held[1::3], held[2::3], strict=True)
    ]
    return Recovery(text(next_page), list(zip(due[::2], due[1::2], strict=True)), rows, claimed)


def _rows_of_event(
    flat: Sequence[bytes], traced: Mapping[bytes, Sequence[bytes]], ours: set[bytes]
) -> Iterable[Recovered]:
    """Return the rows of an event. Hot in a mass recovery."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    ids = fields[b"entry"].split(b",")
    nothing = [b""] * len(ids)

    def column(name: bytes, default: Sequence[bytes] = nothing) -> Sequence[bytes]:
        return fields[name].split(b",") if name in fields else default

    outcome = _OUTCOMES[fields[b"event"]]
    fates = [Outcome.CLAIMED if entry_id in ours else outcome for entry_id in ids]
    idle_ms = [int(number or -1) for number in column(b"idle_ms")]
    consumer, times = repeat(fields[b"consumer"]), repeat(int(fields[b"delivery"]))
    new_entries, jobs, contexts = column(b"new_entry"), column(b"job", ids), map(traced.get, ids)
    rows = zip(ids, fates, new_entries, idle_ms, consumer, jobs, times, contexts, strict=False)
    return map(Recovered._make, rows)


class DueMoves(NamedTuple):
    """The state of the schedules and the quarantined jobs after a call, in the order of ``move_due.lua``."""

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
    """Due jobs that cannot be made ready. ``why`` is the reason of the last one."""
    why: bytes = b""


class CleanupResult(NamedTuple):
    """The findings of a cleanup of a group, in the order of ``maintain_group.lua``."""

    deleted: Sequence[bytes]
    """Silent consumers."""
    lost: Sequence[bytes]
    """Consumers that a third party deleted, and whose workers have not come back. Each is reported once."""
    groups_lost: int = 0
    """How often a third party destroyed the group, since it was first served."""
    unread_ms: int = 0
    """For how long jobs have been ready while no consumer read and none had a delivery, or 0."""


@dataclass(frozen=True, slots=True)
class GroupMoves(GroupCalls):
    """The scripts that act for one group."""

    authority: Authority = NO_LEASE

    async def recover(self, client: Client, source: str, ids: Iterable[bytes]) -> Recovery | Declined:
        """Recover those of the entries that are overdue, as the holder of the lease (``recover.lua``)."""
        return await self.run(RECOVER, read_recovery, client, source, CALL_BYTES, *ids)

    async def recover_page(
        self, client: Client, source: str, unsettled: Iterable[bytes], *, consumer: str, page: str, most: int, room: int
    ) -> Recovery | Declined:
        """Recover a page of ``most`` entries. The embedded worker ``consumer`` claims as long as it has ``room``.

        It recovers no entry of its own, except the ``unsettled`` ones.
        """
        words: tuple[str | bytes | int, ...] = (consumer, page, most, room, *unsettled)
        return await self.run(RECOVER, read_recovery, client, source, CALL_BYTES, *words)

    async def move_due(self, client: Client) -> DueMoves | Declined:
        """Make due jobs ready, and release a quarantined one (``move_due.lua``)."""
        keys = self.keys
        return await self.run(MOVE_DUE, DueMoves, client, keys.stream, MOVE_BATCH, more_keys=(keys.stream_schedule,))

    async def maintain(self, client: Client, *, silence_ms: int | None) -> CleanupResult | Declined:
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
    ) -> AnswerT | Declined:
        """Run a script that acts for the whole group. ``read`` is called with the parts of its answer."""
        words = self.spell(
            source, self.authority.holder, self.authority.token, *argv, more_keys=(self.keys.lease, *more_keys)
        )
        code, *answer = await script.run(client, *words)
        return read(*answer) if code == b"ok" else read_declined(code, *answer)


class GroupLoad(NamedTuple):
    """The values of a group for its gauges, in the order of ``look_at_group.lua``."""

    in_flight: int
    oldest_ready_ms: int
    """Age of the oldest job that waits to be read, or 0."""
    oldest_pending_ms: int
    scheduled: int
    quarantined: int
    dead_letters: int
    paused: int
    """1 while an operator has paused recovery of the group, else 0."""
    recovery_waits_ms: int
    """For how long recovery waits after a gap in the heartbeats."""


async def look_at_group(client: Redis, keys: GroupKeys) -> GroupLoad:
    """Read the values of a group for its gauges (``look_at_group.lua``)."""
    places = (keys.stream, keys.retry, keys.schedule, keys.stream_schedule, keys.quarantine, keys.dead, keys.settings)
    return GroupLoad(*await LOOK_AT_GROUP.run(client, places, (keys.group,)))


async def group_names(client: Redis, stream: str) -> set[str]:
    """Return the names of a stream's consumer groups. A missing stream has no groups."""
    if not await client.exists(stream):
        return set()
    groups: Any = await client.xinfo_groups(stream)
    return {text(group["name"]) for group in groups}
