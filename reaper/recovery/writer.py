"""What the leader writes in a group: each call is one fenced script, typed on this side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from redis.asyncio import Redis

from reaper.settings import WatchedGroup
from workers.protocol.events import JournalLevel, encode_data
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import RecoveryMode, text
from workers.protocol.scripts import load_script
from workers.runtime.settings import to_ms

CALL_BYTES = 512 * 1024
"""Payload after which a call puts off the rest of its batch: no call may block the server for more than 5 ms."""
MOVE_BATCH = 200
"""Due jobs that one call makes ready, of each schedule."""

TOKEN_BEHIND, FOREIGN_NAMESPACE = 2, 3
"""Codes of ``take_over_group.lua``; 1 is success."""


class Outcome(IntEnum):
    """What became of one delivery. Numbers as in ``recover_entries.lua``."""

    GONE = 0
    REDELIVERED = 1
    SUSPECTED = 2
    DEAD_LETTERED = 3
    NOT_DUE = 4
    LOST_PAYLOAD = 5
    HELD = 6
    PUT_OFF = 7


class Recovered(NamedTuple):
    """One delivery's result. ``detail``: new entry ID, dead letter's ID, remaining ms, or why it is held."""

    entry_id: bytes
    outcome: Outcome
    detail: bytes | int = b""
    idle_ms: int = 0
    consumer: bytes = b""
    job_id: bytes = b""
    delivery_count: int = 0
    traced: Sequence[bytes] | None = None
    """What ``recovery.lua`` tells of a traced job."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The whole call did nothing: ``kind`` is stale, paused, late or refused, ``detail`` says why."""

    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Answer to taking a group over. ``detail``: why the policy cannot work here, the token found, or the namespace."""

    code: int
    detail: str
    before: tuple[str, ...] = ()
    """What was agreed before: policy, visibility timeout in ms, max_deliveries, recovery mode."""


@dataclass(frozen=True, slots=True)
class Released:
    """State of the group's suspects after a release."""

    parked: int
    out: int
    settled: int
    jobs: tuple[tuple[bytes, bytes], ...]
    """Job ID and new entry ID of those made ready."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a look at the schedules did."""

    moved: int
    """Jobs made ready."""
    next_due_ms: int | None
    """Time until the next one is due; 0 = there are more already, None = nothing is scheduled."""
    held: int
    """Due jobs that cannot be made ready; ``why`` tells of the last one."""
    why: str


@dataclass(frozen=True, slots=True)
class GroupWriter:
    """Writes of one term in one group. All methods raise what redis-py raises; all are fenced."""

    client: Redis
    group: WatchedGroup
    keys: GroupKeys
    namespace: str
    token: int
    holder: str
    journal: JournalLevel
    journal_maxlen: int
    serves_for_ms: int = 20_000
    """For how long after a sign of life the leader is sure to serve the group; embedded workers stand by meanwhile."""

    @property
    def fence(self) -> str:
        """The fence's value of this term."""
        return f"{self.namespace}:{self.token}:{self.holder}"

    @property
    def _journal_flag(self) -> int:
        return int(self.journal is not JournalLevel.OFF)

    async def take_over(self) -> TakeOver:
        """Install the fence and write the agreement."""
        keys, group = self.keys, self.group
        reply = await load_script("reaper", "take_over_group").run_idempotent(
            self.client,
            [keys.stream, keys.fence, keys.agreement, keys.retry],
            [
                self.namespace, self.token, self.holder, group.group, group.redelivery,
                to_ms(group.visibility_timeout), group.max_deliveries, RecoveryMode.REAPER, self.serves_for_ms,
            ],
        )  # fmt: skip
        detail = reply[1] if isinstance(reply[1], int) else text(reply[1])
        return TakeOver(int(reply[0]), str(detail), tuple(text(value) for value in reply[2:]))

    async def layout(self) -> str:
        """Return why the policy cannot work with the stream's layout, or ''. Writes nothing."""
        reply = await load_script("reaper", "inspect_layout").run(
            self.client, [self.keys.stream], [self.group.redelivery]
        )
        return text(reply)

    async def recover(self, source: str, entry_ids: Sequence[bytes], *, not_after_ms: int) -> list[Recovered] | Refusal:
        """Recover what is overdue among ``entry_ids`` (ascending) of ``source``; not after that server time."""
        keys, group = self.keys, self.group
        reply = await load_script("reaper", "recover_entries").run(
            self.client,
            [
                source, keys.stream, keys.retry, keys.dead, keys.schedule, keys.suspects, keys.fence, keys.agreement,
                keys.journal,
            ],
            [
                self.fence, group.group, to_ms(group.visibility_timeout), group.max_deliveries, group.redelivery,
                self._journal_flag, self.journal_maxlen, self.token, CALL_BYTES, not_after_ms, *entry_ids,
            ],
        )  # fmt: skip
        if reply[0] != b"ok":
            return _refusal(reply)
        return list(map(_recovered, entry_ids, reply[1:]))

    async def release_suspects(self) -> Released | Refusal:
        """Make the next suspects ready, as many as may be out."""
        keys = self.keys
        reply = await load_script("workers.protocol", "release_suspects").run(
            self.client,
            [keys.stream, keys.retry, keys.schedule, keys.suspects, keys.fence, keys.agreement, keys.journal],
            [
                self.fence, self.group.group, self.group.redelivery, self._journal_flag, self.journal_maxlen,
                self.token,
            ],
        )  # fmt: skip
        if reply[0] != b"ok":
            return _refusal(reply)
        return Released(reply[1], reply[2], reply[3], tuple((row[0], row[1]) for row in reply[4:]))

    async def move_due(self) -> Moved | Refusal:
        """Make ready what is due in the group's schedule and in its stream's."""
        keys = self.keys
        reply = await load_script("workers.protocol", "move_due").run(
            self.client,
            [keys.stream, keys.retry, keys.schedule, keys.stream_schedule, keys.fence, keys.agreement, keys.journal],
            [
                self.fence, self.group.group, self.group.redelivery, self._journal_flag, self.journal_maxlen,
                self.token, MOVE_BATCH, CALL_BYTES, self.serves_for_ms,
            ],
        )  # fmt: skip
        if reply[0] != b"ok":
            return _refusal(reply)
        return Moved(reply[1], None if reply[2] < 0 else reply[2], reply[3], text(reply[4]))

    async def tell_scan(self, data: Mapping[str, Any]) -> Refusal | None:
        """Journal what a full scan found."""
        facts = {"group": self.group.group, "mode": str(RecoveryMode.REAPER), "token": self.token}
        reply = await load_script("reaper", "tell_scan").run(
            self.client,
            [self.keys.fence, self.keys.journal],
            [self.fence, self.journal_maxlen, encode_data(facts | dict(data))],
        )
        return None if reply[0] == b"ok" else _refusal(reply)


_OUTCOMES = tuple(Outcome)


def _recovered(entry_id: bytes, row: Sequence[Any]) -> Recovered:
    return Recovered(entry_id, _OUTCOMES[row[0]], *row[1:])


def _refusal(reply: Sequence[bytes]) -> Refusal:
    return Refusal(text(reply[0]), text(reply[1]) if len(reply) > 1 else "")
