"""Keeps faults of a chaos apart that were drawn apart, also on a busy machine, which shifts their moments.

A schedule says when things are over by rights. Here the real end is observed. A fault waits until the jobs that it must
not hit have ended.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from reaper.drill import queries
from reaper.drill.faults import Fault, FaultKind
from reaper.drill.records import Role
from reaper.drill.toolbox import Toolbox
from tests.soak import questions
from tests.soak.chaos import BLOWS, rule_between
from tests.soak.kinds import SoakKind

NOTHING_LEFT = "all was over before it could come without costing an innocent job its last delivery or its payload"
NEEDS_HOLDER = frozenset({FaultKind.PAUSE_HOLDER, SoakKind.DESTROY_GROUP, SoakKind.SHORTEN_VISIBILITY})
NEEDS_NOTHING_STRANDED = frozenset({FaultKind.POISON, SoakKind.DESTROY_GROUP})
NEEDS_NO_POISON = BLOWS | NEEDS_NOTHING_STRANDED
HELD_FOR_S = 3.0
"""A replica that has held the lease for so long has seen the whole group, where full scans come every second."""
_POLL_S = 0.1


@dataclass(slots=True)
class Gate:
    """Lets faults through one by one, as soon as no job is under way that they must not meet."""

    tools: Toolbox
    _playing: list[str] = field(default_factory=list)
    _held: tuple[str, float] = ("", 0.0)
    """The holder of the lease when it was looked last, and since when, as far as it was looked."""

    async def play(self, fault: Fault, inject: Callable[[Fault], Awaitable[str]]) -> str:
        """Inject ``fault`` as soon as it may come. Return '' or the reason why it could not."""
        if not await self._let_through(fault.kind):
            return NOTHING_LEFT
        try:
            return await inject(fault)
        finally:
            self._playing.remove(fault.kind)

    async def _let_through(self, kind: str) -> bool:
        async def attempt() -> bool | None:
            # The current faults are asked last, so that no two pass at once.
            if not await self._may_come(kind) or any(rule_between(kind, other) for other in self._playing):
                return None
            self._playing.append(kind)
            return True

        return bool(await self.tools.once(attempt, poll_s=_POLL_S))

    async def _may_come(self, kind: str) -> bool:
        """Tell whether what faults of other kinds have stalled, and must not meet it, has come to its end."""
        stage = self.tools.stage
        if kind in NEEDS_NO_POISON and await questions.dead_letters(stage) < self.tools.producer.poisonous:
            return False
        if kind in NEEDS_NOTHING_STRANDED and await self._anything_stranded():
            return False
        if kind == FaultKind.POISON and await questions.anything_lost_before(stage, self.tools.witness.view):
            return False  # fresh poison takes all deliveries but one from the jobs beside it, so this must be the first
        return kind not in NEEDS_HOLDER or not stage.recovery.by_reapers or await self._is_held()

    async def _is_held(self) -> bool:
        """Tell whether the same reaper has held the lease for a while."""
        holder = await queries.holder(self.tools.stage)
        if not any(queries.belongs_to(holder, run.name) for run in self.tools.supervisor.alive(Role.REAPER)):
            holder = ""
        if holder != self._held[0]:
            self._held = holder, anyio.current_time()
        return bool(holder) and anyio.current_time() - self._held[1] >= HELD_FOR_S

    async def _anything_stranded(self) -> bool:
        """Tell whether a dead process holds anything, or a job is at its last delivery or quarantined before it."""
        stage, supervisor = self.tools.stage, self.tools.supervisor
        rows = await queries.pending(stage)
        alive = [run.name for run in supervisor.alive(*Role)]
        held = await queries.pending_by_process(stage, alive)
        if sum(map(len, held.values())) < len(rows):
            return True
        return await questions.quarantined(stage) > 0 or await queries.must_not_crash(stage, rows)
