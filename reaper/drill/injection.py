"""Injects the faults: each at its time or, if it needs a process that it can hit, as soon after as there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from reaper.drill.faults import Fault
from reaper.drill.kit import Play
from reaper.drill.records import MissedFault
from reaper.drill.toolbox import Toolbox


@dataclass(slots=True)
class Injector:
    """Plays the faults of one act."""

    tools: Toolbox
    plays: Mapping[str, Play]
    missed: list[MissedFault] = field(default_factory=list)
    open: int = 0
    """Faults that are not over yet."""

    async def run(self, faults: Sequence[Fault]) -> None:
        """Inject ``faults``, timed from now; return when all are over."""
        started = anyio.current_time()
        self.open = len(faults)
        async with anyio.create_task_group() as group:
            for fault in faults:
                group.start_soon(self._inject, fault, started)

    async def _inject(self, fault: Fault, started: float) -> None:
        await anyio.sleep_until(started + fault.at.total_seconds())
        why_not = await self.plays[fault.kind](fault)
        if why_not:
            self.missed.append(MissedFault(fault.kind, why_not))
            self.tools.announce(f"{fault.kind} is left out: {why_not}")
        self.open -= 1
