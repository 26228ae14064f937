"""The scripts that move jobs. The duties of a worker are the rules of docs/protocol.md."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from workers.protocol.calls import Client, CountedEntry, GroupCalls
from workers.protocol.messages import text
from workers.protocol.scripts import load_script

ACK = load_script("workers.protocol", "ack")
SETTLE = load_script("workers.protocol", "settle")
EXTEND = load_script("workers.protocol", "extend")
HOLD = load_script("workers.protocol", "hold")
ADOPT = load_script("workers.protocol", "adopt")
RETURN_TAKEN = load_script("workers.protocol", "return_taken")

Fields = Sequence[str | bytes | int]
"""Flat names and values for the journal."""


class Outcome(StrEnum):
    """How a delivery ends. The values are the verbs of ``settle.lua``."""

    ACK = "ack"
    """The job is done."""
    NACK = "nack"
    """It failed, and that counts."""
    RETRY = "retry"
    """It failed, and that does not count."""
    HAND_BACK = "hand_back"
    """It did not run to its end. It is ready again at once, and that does not count."""
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, with the details of a failure."""

    outcome: Outcome
    reason: str = ""
    """Why the job is a dead letter, if it becomes one."""
    error: str = ""
    """The error, for people."""
    delay_ms: int = 0
    """How long the job waits before it is ready again."""
    traceback: str = ""
    """Traceback of the error, for the dead letter."""
    exception: str = field(default="", compare=False)
    """Type of the exception of the handler, if it was neither `Retry` nor `Reject`."""


class SettleResult(IntEnum):
    """The outcome of a verdict. Numbers as in ``settle.lua``."""

    REJECTED = 0
    """The delivery is not ours any more, because it was settled or made ready again."""
    DONE = 1
    DEAD = 2
    HELD = 4
    """It cannot be copied, and stays pending."""
    LOST = 6
    """A third party deleted its payload, so it cannot run again. The journal has it."""


class Settled(NamedTuple):
    """The result of a verdict. ``detail`` is the ID of the dead letter, or the reason of an undeliverable one."""

    result: SettleResult
    detail: str = ""


class HeartbeatAnswer(IntEnum):
    """The answer of a heartbeat for a delivery. Numbers as in ``extend.lua``."""

    REJECTED = 0
    """It is not ours any more."""
    EXTENDED = 1
    PAYLOAD_GONE = 2
    """A third party deleted its entry, so no other worker can run it."""
    VANISHED = 3
    """A third party deleted the consumer or the group, and no consumer has the delivery."""
    TAKEN = 4
    """The server's clock was set back, so a read may have taken it by mistake. The reader gives it back."""


class SettleEntry(NamedTuple):
    """A delivery with a verdict other than an ack, and its facts for the journal."""

    entry_id: bytes
    times: int
    verdict: Verdict
    fields: Fields = ()


class HandlerState(IntEnum):
    """The state of a handler in a heartbeat (rules W4 and W8). Numbers as in ``extend.lua``."""

    WAITS = 0
    BEGINS = 1
    """It is about to begin, or a quarantined job has begun only now, and may still crash the process."""
    RUNS = 2


class HeartbeatEntry(NamedTuple):
    """A delivery in a heartbeat."""

    entry_id: bytes
    times: int
    handler: HandlerState


@dataclass(frozen=True, slots=True)
class Moves(GroupCalls):
    """The scripts of a worker. The headers name the errors of the scripts."""

    consumer: str
    caller: str = field(default_factory=lambda: secrets.token_hex(8))
    """A random ID of this process."""

    async def ack(
        self,
        client: Client,
        source: str,
        ids: Sequence[bytes],
        *,
        number: int,
        deletes: bool = False,
        fields: Fields = (),
    ) -> Sequence[bool] | None:
        """Acknowledge jobs (``ack.lua``). Return for each whether it was acknowledged, or None if all were.

        ``number`` ascends with each call of ``ack`` and `settle`. A repeated call keeps its number (rule W2).
        """
        words = self.spell(source, self.consumer, self.caller, number, int(deletes), len(ids), *ids, *fields)
        reply: Any = await ACK.run(client, *words)
        return None if isinstance(reply, int) else [code == 1 for code in reply]

    async def settle(self, client: Client, source: str, items: Iterable[SettleEntry], *, number: int) -> list[Settled]:
        """Settle deliveries with other verdicts than acks (``settle.lua``)."""
        argv: list[str | bytes | int] = [self.consumer, self.caller, number]
        for item in items:
            verdict = item.verdict
            argv += [verdict.outcome.value, item.entry_id, item.times, verdict.delay_ms]
            argv += [verdict.reason, verdict.error, verdict.traceback, len(item.fields), *item.fields]
        reply: Any = await SETTLE.run(client, *self.spell(source, *argv))
        return [
            Settled(SettleResult(one)) if isinstance(one, int) else Settled(SettleResult(one[0]), text(one[1]))
            for one in reply
        ]

    async def extend(self, client: Client, source: str, items: Iterable[HeartbeatEntry]) -> list[HeartbeatAnswer]:
        """Send a heartbeat (``extend.lua``). Return an answer for each delivery."""
        words = (word for item in items for word in (item.entry_id, item.times, int(item.handler)))
        reply: Any = await EXTEND.run(client, *self.spell(source, self.consumer, *words))
        return [HeartbeatAnswer(code) for code in reply]

    async def hold(
        self, client: Client, source: str, deliveries: Iterable[tuple[bytes, int]], *, answered: int
    ) -> list[bool]:
        """Take back vanished deliveries, as entry ID and delivery count (``hold.lua``). Return which are ours."""
        argv = (word for delivery in deliveries for word in delivery)
        reply: Any = await HOLD.run(client, *self.spell(source, self.consumer, self.caller, answered, *argv))
        return [code == 1 for code in reply]

    async def adopt(
        self, client: Client, source: str, in_hand: Iterable[bytes], *, owner: str, most: int, page: str = "-"
    ) -> tuple[str, list[CountedEntry]]:
        """Return the next page, and deliveries of ``owner`` whose replies were lost (``adopt.lua``), with their counts.

        With ``most`` 0, all deliveries of the owner are made overdue, because its process is dead.
        """
        next_page, found = await ADOPT.run(client, *self.spell(source, owner, most, page, *in_hand))
        return text(next_page), found

    async def return_taken(self, client: Client, source: str, taken: Iterable[tuple[bytes, int]]) -> None:
        """Give back entries that a read took from live workers, with their earlier counts (``return_taken.lua``)."""
        words = [word for one in taken for word in one]
        await RETURN_TAKEN.run(client, (source,), (self.keys.group, self.consumer, *words))
