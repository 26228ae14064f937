"""The server of a drill, its faults, and its judgment.

The project's own tests play more faults, on more servers, with a kit of their own (`tests/soak`).
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from reaper.drill.evidence import Evidence
from reaper.drill.faults import AFTER_PAUSE_S, LONG_JOBS, Fault, FaultKind
from reaper.drill.holder_faults import HolderFaults
from reaper.drill.ledger import Ledger, build_ledger, objections
from reaper.drill.records import Effect, InjectedFault, MissedFault
from reaper.drill.recoveries import Recovery
from reaper.drill.redis_server import Server, redis_at_hand
from reaper.drill.settings import DrillSettings
from reaper.drill.stage import Stage
from reaper.drill.toolbox import Toolbox
from reaper.drill.worker_faults import WorkerFaults

Play = Callable[[Fault], Awaitable[str]]
"""Injects a fault. Returns the reason if it could not, else an empty string."""


class Kit:
    """The faults of `FaultKind`, on one server."""

    def server(self, settings: DrillSettings, folder: Path) -> AbstractAsyncContextManager[Server]:
        """Give the server of a drill. Raises errors of `redis_at_hand`."""
        return redis_at_hand(settings.redis_url, folder)

    def names(self, run_id: str, recovery: Recovery) -> tuple[str, str]:
        """Return names of the stream and of the namespace of one act that are not used elsewhere."""
        stream = f"drill-{run_id}-{recovery.name}"
        return stream, f"{stream}-reapers"

    async def plays(self, tools: Toolbox) -> Mapping[str, Play]:
        """Return a function for each kind of fault, before the act begins. Raises redis-py's errors."""
        workers = WorkerFaults(tools)
        holders = HolderFaults(tools, workers)
        return {
            FaultKind.KILL_WORKER: workers.kill_worker,
            FaultKind.PAUSE_WORKER: workers.pause_worker,
            FaultKind.POISON: workers.poison,
            LONG_JOBS: workers.long_jobs,
            FaultKind.KILL_HOLDER: holders.kill_holder,
            FaultKind.PAUSE_HOLDER: holders.pause_holder,
            FaultKind.KILL_REAPERS: holders.kill_reapers,
            FaultKind.PAUSE_REDIS: partial(_pause_redis, tools),
        }

    async def judge(self, evidence: Evidence, stage: Stage) -> tuple[Ledger, list[str]]:
        """Return the ledger of an act, and a sentence for each thing that is not as promised."""
        ledger = build_ledger(evidence)
        return ledger, objections(ledger, [fault.kind for fault in stage.settings.faults_for(stage.recovery)])


async def _pause_redis(tools: Toolbox, fault: Fault) -> str:
    """Stop the process of the server. Connections stay open, and it does not answer."""
    process, seconds = tools.stage.server.process, fault.lasts_s
    assert process
    injected = InjectedFault(fault.kind, f"process {process.pid}", time.time(), effect=Effect.AWAY)
    await tools.note(injected, f"Redis is stopped for {seconds:g} s")
    tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
    try:
        process.pause()
        await anyio.sleep(seconds)
    finally:
        process.resume()
    tools.over(injected, "Redis continues")
    return ""


@dataclass(slots=True)
class Injector:
    """Injects the faults of one act, each at its time, or when there is a process to hit.

    ``open`` counts the faults that are not over yet.
    """

    tools: Toolbox
    plays: Mapping[str, Play]
    missed: list[MissedFault] = field(default_factory=list)
    open: int = 0

    async def run(self, faults: Sequence[Fault]) -> None:
        """Inject ``faults``, timed from now. Returns when all are over."""
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
