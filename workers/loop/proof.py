"""Heartbeats from the event loop: the calls that extend deliveries, and hold vanished ones again."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.loop.held import RUNNING, Held, Source
from workers.loop.numbers import Numbers
from workers.protocol.calls.moves import Beating, Handling, Life, Moves
from workers.protocol.connection import KeptConnection
from workers.runtime.clock import monotonic

PROVEN = frozenset({Life.EXTENDED, Life.PAYLOAD_GONE})
"""These answers prove that Redis got the heartbeat of the delivery."""


def beating(held: Held, *, begins: bool = False) -> Beating:
    """Return a delivery as a heartbeat reports it (rule W4). ``begins``: its handler is about to run."""
    runs = held.stage is RUNNING
    state = Handling.BEGINS if begins or runs else Handling.WAITS
    if runs and monotonic() >= held.runs_from:
        state = Handling.RUNS
    return Beating(held.raw_entry_id, held.times_delivered, state)


def note(batch: Sequence[Held], lives: Sequence[Life], asked_at: float) -> None:
    """Note the answers to a heartbeat that was sent at ``asked_at``. For any thread."""
    for held, life in zip(batch, lives, strict=True):
        if life in PROVEN:
            held.prove(asked_at)


@dataclass(frozen=True, slots=True)
class ProofOfLife:
    """Extends deliveries, and notes it. All methods raise errors of redis-py."""

    connection: KeptConnection
    moves: Moves
    consumer: str
    numbers: Numbers

    async def prove(self, held: Held) -> bool:
        """Extend one delivery that runs, or is about to begin. Returns False if it is not ours."""
        _, [life] = await self.extend_many(held.source, [held], begins=True)
        if life is Life.VANISHED:
            return (await self.hold(held.source, [held]))[0]
        return life in PROVEN

    async def extend_many(
        self, source: Source, batch: Sequence[Held], *, begins: bool = False
    ) -> tuple[int, list[Life]]:
        """Extend deliveries of one source. Return the server's time in ms, and an answer for each."""
        asked_at = monotonic()
        items = [beating(held, begins=begins) for held in batch]
        server_ms, lives = await self.moves.extend(self.connection, source.key, items, consumer=self.consumer)
        note(batch, lives, asked_at)
        return server_ms, lives

    async def hold(self, source: Source, batch: Sequence[Held]) -> list[bool]:
        """Hold vanished deliveries again. Return which are ours. Not while a settlement is under way (rule W6)."""
        asked_at = monotonic()
        ours = await self.moves.hold(
            self.connection,
            source.key,
            [(held.raw_entry_id, held.times_delivered) for held in batch],
            consumer=self.consumer,
            caller=self.numbers.caller,
            answered=self.numbers.answered,
        )
        for held, is_ours in zip(batch, ours, strict=True):
            if is_ours:
                held.prove(asked_at)
        return ours
