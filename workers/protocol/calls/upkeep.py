"""The upkeep of a whole group, by the replica that holds its lease, or by embedded workers."""

from dataclasses import dataclass

from redis.asyncio import Redis

from workers.protocol.calls import Journal
from workers.protocol.calls.group_moves import DueMoves, GroupMoves
from workers.protocol.calls.refusals import Refusal, RefusalKind, read_refusal
from workers.protocol.keys import GroupKeys
from workers.protocol.scripts import load_script

KEEP_HOUSE = load_script("workers.protocol", "keep_house")

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


AGREEMENT = Authority()
"""What embedded workers act by: they hold no lease, and may act if the group has agreed on embedded recovery."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a look at the schedules."""

    next_due_ms: int | None
    """Time until the next job is due; 0 = there are more already, None = nothing is scheduled."""
    held: int
    """Due jobs that cannot be made ready; ``why`` tells of the last one."""
    why: str
    quarantined: int
    """Quarantined jobs that wait to be released."""


async def _move_due(client: Redis, keys: GroupKeys, authority: Authority, journal: Journal) -> DueMoves | Refusal:
    moves = GroupMoves.of(keys, journal)
    found = await moves.move_due(client, lease=authority.holder, token=authority.token, most=MOVE_BATCH)
    return found if found.status == "ok" else Refusal(RefusalKind(found.status), found.lease)


async def move_due(client: Redis, keys: GroupKeys, authority: Authority, journal: Journal) -> Moved | Refusal:
    """Make ready what is due in the group's schedule and in its stream's (``move_due.lua``)."""
    found = await _move_due(client, keys, authority, journal)
    if isinstance(found, Refusal):
        return found
    return Moved(found.next_ms if found.next_ms >= 0 else None, found.held, found.why, found.quarantined)


@dataclass(frozen=True, slots=True)
class Released:
    """State of the group's quarantined jobs after a release."""

    quarantined: int
    out: int
    settled: int
    """Those that have settled since the last release."""
    jobs: tuple[tuple[bytes, bytes], ...]
    """Job ID and new entry ID of those made ready."""


async def release_quarantined(
    client: Redis, keys: GroupKeys, authority: Authority, journal: Journal
) -> Released | Refusal:
    """Make the next quarantined job ready, if it may be out (``move_due.lua``)."""
    found = await _move_due(client, keys, authority, journal)
    if isinstance(found, Refusal):
        return found
    jobs = ((found.released_now[0].encode(), found.released_now[1].encode()),) if found.released_now else ()
    return Released(found.quarantined, found.released, found.settled, jobs)


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """The findings of a cleanup of a group."""

    deleted: tuple[bytes, ...]
    """Consumers that were silent, and are gone."""
    is_remade: bool
    """The group was destroyed since the last call, and made again."""
    groups_lost: int
    """How often that was found, since the group was first served."""
    lost: tuple[bytes, ...] = ()
    """Consumers of workers that somebody else deleted, and whose workers have not come back; reported once."""


async def keep_house(
    client: Redis,
    keys: GroupKeys,
    authority: Authority,
    journal: Journal,
    *,
    silence_ms: int | None,
) -> CleanupResult | Refusal:
    """Note the group's position, and delete consumers that were silent for longer (``keep_house.lua``)."""
    reply = await KEEP_HOUSE.run(
        client,
        (keys.stream, keys.lease, keys.agreement, keys.journal),
        (
            authority.holder,
            keys.group,
            silence_ms or "",
            *journal,
            authority.token,
        ),
    )
    if reply[0] != b"ok":
        return read_refusal(reply)
    _, deleted, is_missing, groups_lost, *names = reply
    return CleanupResult(tuple(names[:deleted]), is_missing == 1, groups_lost, tuple(names[deleted:]))
