"""The scripts that move jobs. The duties of a worker are the rules of docs/protocol.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import redis

from workers.protocol.calls import Client, CoreCalls, Taken
from workers.protocol.calls.settlement import Verdict
from workers.protocol.messages import text
from workers.protocol.scripts import load_script

ACK = load_script("workers.protocol", "ack")
SETTLE = load_script("workers.protocol", "settle")
EXTEND = load_script("workers.protocol", "extend")
HOLD = load_script("workers.protocol", "hold")
ADOPT = load_script("workers.protocol", "adopt")

Fields = Sequence[str | bytes | int]
"""Flat names and values for the journal."""


class SettleResult(IntEnum):
    """The outcome of a verdict. Numbers as in ``settle.lua``."""

    REJECTED = 0
    """The delivery is not ours any more: it was settled, or made ready again."""
    DONE = 1
    DEAD = 2
    HELD = 4
    """It cannot be copied, and stays pending."""
    LOST = 6
    """Given back, and its payload was deleted: it cannot run again. The journal has it."""


class Settled(NamedTuple):
    """The result of a verdict. ``detail`` is the ID of the dead letter, or the reason of a held delivery."""

    result: SettleResult
    detail: str = ""


class HeartbeatAnswer(IntEnum):
    """The answer of a heartbeat for a delivery. Numbers as in ``extend.lua``."""

    REJECTED = 0
    """It is not ours any more."""
    EXTENDED = 1
    PAYLOAD_GONE = 2
    """Somebody deleted its entry: nobody else can run it."""
    VANISHED = 3
    """Somebody deleted the consumer or the group, and nobody has it."""
    TAKEN = 4
    """A read may have taken it by mistake just now, as the server's clock was set back, and will give it back."""


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
    """It is about to begin. Of a quarantined job also: it began only now, and may still crash the process."""
    RUNS = 2


class HeartbeatEntry(NamedTuple):
    """A delivery in a heartbeat."""

    entry_id: bytes
    times: int
    handling: HandlerState


@dataclass(frozen=True, slots=True)
class Moves(CoreCalls):
    """The scripts of a worker. All calls raise the errors of redis-py. The headers name the errors of the scripts."""

    async def ack(
        self,
        client: Client,
        source: str,
        ids: Sequence[bytes],
        *,
        consumer: str,
        caller: str,
        number: int,
        deletes: bool = False,
        fields: Fields = (),
    ) -> Sequence[bool] | None:
        """Say that jobs are done (``ack.lua``). Return for each whether it is done. None means that all are.

        ``number`` ascends with each call of ``ack`` and `settle`. A repeated call keeps its number (rule W2).
        """
        words = self._words(consumer, caller, number, int(deletes), len(ids), *ids, *fields)
        reply: Any = await ACK.run(client, self._names(source), words)
        return None if isinstance(reply, int) else [code == 1 for code in reply]

    async def settle(
        self, client: Client, source: str, items: Iterable[SettleEntry], *, consumer: str, caller: str, number: int
    ) -> list[Settled]:
        """Give deliveries back, or up (``settle.lua``)."""
        argv: list[str | bytes | int] = [consumer, caller, number]
        for item in items:
            verdict = item.verdict
            argv += [verdict.outcome.value, item.entry_id, item.times, verdict.delay_ms]
            argv += [verdict.reason, verdict.error, verdict.traceback, len(item.fields), *item.fields]
        reply: Any = await SETTLE.run(client, self._names(source), self._words(*argv))
        return [
            Settled(SettleResult(one)) if isinstance(one, int) else Settled(SettleResult(one[0]), text(one[1]))
            for one in reply
        ]

    async def extend(
        self, client: Client, source: str, items: Iterable[HeartbeatEntry], *, consumer: str
    ) -> tuple[int, list[HeartbeatAnswer]]:
        """Send a heartbeat (``extend.lua``). Return the server's time in ms, and an answer for each."""
        return _lives(await EXTEND.run(client, self._names(source), self._beat(items, consumer)))

    def extend_blocking(
        self, client: "redis.Redis", source: str, items: Iterable[HeartbeatEntry], *, consumer: str
    ) -> tuple[int, list[HeartbeatAnswer]]:
        """Send a heartbeat, in a thread that may block."""
        return _lives(EXTEND.run_blocking(client, self._names(source), self._beat(items, consumer)))

    def _beat(self, items: Iterable[HeartbeatEntry], consumer: str) -> tuple[str | bytes | int, ...]:
        return self._words(
            consumer, *(word for item in items for word in (item.entry_id, item.times, int(item.handling)))
        )

    async def hold(
        self,
        client: Client,
        source: str,
        deliveries: Iterable[tuple[bytes, int]],
        *,
        consumer: str,
        caller: str,
        answered: int,
    ) -> list[bool]:
        """Take back vanished deliveries (``hold.lua``), given as entry ID and times delivered.

        Return which are ours.
        """
        argv = (word for delivery in deliveries for word in delivery)
        words = self._words(consumer, caller, answered, *argv)
        reply: Any = await HOLD.run(client, self._names(source), words)
        return [code == 1 for code in reply]

    async def adopt(
        self, client: Client, source: str, in_hand: Iterable[bytes], *, consumer: str, most: int, page: str = "-"
    ) -> tuple[str, list[Taken]]:
        """Return the next page, and deliveries of lost replies (``adopt.lua``).

        With ``most`` 0, all deliveries of the consumer are made overdue, because its process is dead.
        """
        words = self._words(consumer, most, page, *in_hand)
        next_page, found = await ADOPT.run(client, self._names(source), words)
        return text(next_page), [Taken(entry[0], entry[1], times) for entry, times in found]


def _lives(reply: Any) -> tuple[int, list[HeartbeatAnswer]]:
    at_ms, *codes = reply
    return at_ms, [HeartbeatAnswer(code) for code in codes]
