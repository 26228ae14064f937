"""The calls of a process about its deliveries: heartbeats, and the numbers of settlements."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.loop.in_flight import RUNNING, Delivery, Source
from workers.protocol.calls.moves import HandlerState, HeartbeatAnswer, HeartbeatEntry, Moves
from workers.protocol.connection import KeptConnection
from workers.runtime.clock import monotonic

PROVEN = frozenset({HeartbeatAnswer.EXTENDED, HeartbeatAnswer.PAYLOAD_GONE})
"""These answers prove that Redis got the heartbeat of the delivery."""


def beating(job: Delivery, *, begins: bool = False) -> HeartbeatEntry:
    """Return a delivery as a heartbeat reports it (rule W4). ``begins``: its handler is about to run."""
    runs = job.stage is RUNNING
    state = HandlerState.BEGINS if begins or runs else HandlerState.WAITS
    if runs and monotonic() >= job.runs_from:
        state = HandlerState.RUNS
    return HeartbeatEntry(job.raw_entry_id, job.times_delivered, state)


@dataclass(slots=True)
class DeliveryCalls:
    """Extends deliveries, and numbers settlements. All methods raise errors of redis-py."""

    connection: KeptConnection
    moves: Moves
    answered: int = 0
    """Number of the settlement that was answered last (rule W2). A call without an answer has the next one."""
    settling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a settlement has no answer (rules W2 and W6)."""

    async def prove(self, job: Delivery) -> bool:
        """Extend one delivery that runs, or is about to begin. Returns False if it is not ours."""
        asked_at = monotonic()
        entries = [beating(job, begins=True)]
        [answer] = await self.moves.extend(self.connection, job.source.key, entries)
        if answer is HeartbeatAnswer.VANISHED:
            ours, _ = await self.hold(job.source, [job])
            return bool(ours)
        if answer in PROVEN:
            job.proven = asked_at
        return answer in PROVEN

    async def hold(self, source: Source, batch: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Hold vanished deliveries again that are not settled yet. Return those that are ours, and those that are not.

        Waits until no settlement is under way (rule W6). Settlements wait meanwhile.
        """
        async with self.settling:
            batch = [job for job in batch if source.holds(job)]
            if not batch:
                return [], []
            asked_at = monotonic()
            results = await self.moves.hold(
                self.connection,
                source.key,
                [(job.raw_entry_id, job.times_delivered) for job in batch],
                answered=self.answered,
            )
        ours, lost = list[Delivery](), list[Delivery]()
        for job, is_ours in zip(batch, results, strict=True):
            (ours if is_ours else lost).append(job)
        for job in ours:
            job.proven = asked_at
        return ours, lost
