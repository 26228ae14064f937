"""The upkeep of a whole group, by a leader with its fence, or by embedded workers under the group's settings."""

from dataclasses import dataclass

from redis.asyncio import Redis

from workers.protocol.calls import CALL_BYTES, Journal
from workers.protocol.calls.refusals import Refusal, read_refusal
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Redelivery, text
from workers.protocol.scripts import load_script

MOVE_DUE = load_script("workers.protocol", "move_due")
RELEASE_SUSPECTS = load_script("workers.protocol", "release_suspects")
KEEP_HOUSE = load_script("workers.protocol", "keep_house")

MOVE_BATCH = 200
"""Due jobs that one call makes ready, of each schedule."""
SUSPECT_SCORE = 2**52
"""Suspects are parked in their group's schedule at this score and above: behind every due time."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The right to act for a group. The scripts compare it, and do not act if it does not hold."""

    namespace: str = ""
    token: int = 0
    holder: str = ""
    serves_for_ms: int = 0
    """For how long after a sign of life a leader is sure to serve the group; embedded workers stand by meanwhile."""

    @property
    def fence(self) -> str:
        """The value of the group's fence in this term, or '' without one."""
        return f"{self.namespace}:{self.token}:{self.holder}" if self.namespace else ""


AGREEMENT = Authority()
"""What embedded workers act by: they have no fence, and may where the group has agreed on embedded recovery."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a look at the schedules."""

    next_due_ms: int | None
    """Time until the next job is due; 0 = there are more already, None = nothing is scheduled."""
    held: int
    """Due jobs that cannot be made ready; ``why`` tells of the last one."""
    why: str
    parked: int
    """Suspects that wait to be let out."""
    agreed: bool = True
    """The leader's agreement is there; else it was lost, and is to be written anew."""


async def move_due(
    client: Redis, keys: GroupKeys, authority: Authority, redelivery: Redelivery, journal: Journal
) -> Moved | Refusal:
    """Make ready what is due in the group's schedule and in its stream's (``move_due.lua``)."""
    reply = await MOVE_DUE.run(
        client,
        (
            keys.stream, keys.retry, keys.schedule, keys.stream_schedule, keys.fence, keys.agreement, keys.journal,
            keys.notes,
        ),
        (
            authority.fence, keys.group, redelivery, *journal, authority.token, MOVE_BATCH, CALL_BYTES,
            authority.serves_for_ms or "",
        ),
    )  # fmt: skip
    if reply[0] != b"ok":
        return read_refusal(reply)
    _, _, next_due_ms, held, why, parked, agreed = reply
    return Moved(next_due_ms if next_due_ms >= 0 else None, held, text(why), parked, agreed == 1)


@dataclass(frozen=True, slots=True)
class Released:
    """State of the group's suspects after a release."""

    parked: int
    out: int
    settled: int
    """Those that have settled since the last release."""
    jobs: tuple[tuple[bytes, bytes], ...]
    """Job ID and new entry ID of those made ready."""


async def release_suspects(
    client: Redis, keys: GroupKeys, authority: Authority, redelivery: Redelivery, journal: Journal
) -> Released | Refusal:
    """Make the next suspects ready, as many as may be out (``release_suspects.lua``)."""
    reply = await RELEASE_SUSPECTS.run(
        client,
        (
            keys.stream,
            keys.retry,
            keys.schedule,
            keys.suspects,
            keys.fence,
            keys.agreement,
            keys.journal,
            keys.notes,
        ),
        (authority.fence, keys.group, redelivery, *journal, authority.token),
    )
    if reply[0] != b"ok":
        return read_refusal(reply)
    _, parked, out, settled, *jobs = reply
    return Released(parked, out, settled, tuple((job_id, new_entry) for job_id, new_entry in jobs))


DESTROYED_OR_EMPTIED = "destroyed the group, or deleted all of its consumers at once"
"""The marker is missing: Redis does not tell one from the other."""


@dataclass(frozen=True, slots=True)
class Kept:
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
) -> Kept | Refusal:
    """Note the group's position, and delete consumers that were silent for longer (``keep_house.lua``)."""
    reply = await KEEP_HOUSE.run(
        client,
        (keys.stream, keys.fence, keys.agreement, keys.journal, keys.retry, keys.notes, keys.schedule),
        (
            authority.fence,
            keys.group,
            silence_ms or "",
            *journal,
            authority.token,
        ),
    )
    if reply[0] != b"ok":
        return read_refusal(reply)
    _, deleted, is_missing, groups_lost, *names = reply
    return Kept(tuple(names[:deleted]), is_missing == 1, groups_lost, tuple(names[deleted:]))
