"""Proof of life: the calls that extend deliveries from the event loop, and what is noted of many."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workers.loop.held import ENDED, Held, Source
from workers.loop.job import Job
from workers.protocol.calls.settlement import Extend, Extension, Extensions, Hold, Proof
from workers.protocol.connection import COMMAND_TIMEOUT_S, KeptConnection
from workers.runtime.clock import monotonic

UNPROVEN = frozenset({Extension.REFUSED, Extension.TAKEN})
"""After these, Redis has heard nothing of the delivery from us."""


@dataclass(frozen=True, slots=True)
class ProofOfLife:
    """Extends deliveries, and notes it. All raise what redis-py raises."""

    connection: KeptConnection
    extend: Extend[Job]
    server_ms: Callable[[float], int]
    """Returns the server's time, in ms, of a moment on the monotonic clock."""
    report_deleted: Callable[[Job], None]
    """Is told of a job whose entry was deleted together with its reference, once."""

    def of(self, batch: Iterable[Held]) -> Proof:
        """Return what a call that is made now says of all of ``batch``: what is true of the oldest proof."""
        return Proof(self.server_ms(min([held.proven for held in batch])), self._until_ms())

    def of_each(self, batch: Iterable[Held]) -> list[Proof]:
        """Return what a call that is made now says of each of ``batch``."""
        until_ms = self._until_ms()
        return [Proof(self.server_ms(held.proven), until_ms, held.has_lost_payload) for held in batch]

    def _until_ms(self) -> int:
        return self.server_ms(monotonic()) + round(COMMAND_TIMEOUT_S * 1000)

    async def prove(self, held: Held) -> bool:
        """Extend one delivery that runs, or is about to begin; returns False where it is not ours."""
        [result] = (await self.extend_many(held.source, [held], begin=True)).results
        if result is Extension.VANISHED:
            return (await self.hold_again(held.source, [held]))[0] is not Hold.LOST
        return result is not Extension.REFUSED

    async def extend_many(self, source: Source, batch: Sequence[Held], *, begin: bool = False) -> Extensions:
        """Extend deliveries of one source; returns what came of each."""
        asked_at = monotonic()
        jobs = [held.job for held in batch]
        answer = await self.extend.run(self.connection, source.key, jobs, self.of_each(batch), begin=begin)
        self.note(batch, answer, asked_at)
        return answer

    def note(self, batch: Sequence[Held], answer: Extensions, asked_at: float) -> None:
        """Note what came of a call that extended many, and was made at ``asked_at``.

        That one vanished is a proof as well: nobody had it then, and nobody takes what is pending for nobody. But not
        by a clock that was set back: this one would be of the future, and the one before may still count. Nor of what
        has ended by now: perhaps it was settled, and what tells of that is looked for behind the last proof.
        """
        is_set_back = answer.server_ms < self.server_ms(asked_at)
        for held, result in zip(batch, answer.results, strict=True):
            is_unsaid = result is Extension.VANISHED and (is_set_back or held.stage is ENDED)
            if result not in UNPROVEN and not is_unsaid:
                held.prove(asked_at)

    async def hold_again(self, source: Source, batch: Sequence[Held]) -> list[Hold]:
        """Take back deliveries that vanished, and report those that were deleted; return what became of each."""
        asked_at = monotonic()
        results = await self.extend.hold_again(
            self.connection, source.key, [held.job for held in batch], self.of_each(batch)
        )
        for held, result in zip(batch, results, strict=True):
            if result is not Hold.LOST:
                held.prove(asked_at)
            if result is Hold.DELETED:
                held.has_lost_payload = True
                self.report_deleted(held.job)
        return results
