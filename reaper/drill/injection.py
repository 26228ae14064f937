"""Injects the faults: each at its time or, where it needs something to hit, as soon after as there is something."""

import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import anyio

from reaper.drill.consumer_faults import ConsumerFaults
from reaper.drill.faults import AFTER_PAUSE_S, Fault, FaultKind
from reaper.drill.gate import Gate
from reaper.drill.group_faults import GroupFaults
from reaper.drill.leader_faults import LeaderFaults
from reaper.drill.records import InjectedFault, MissedFault
from reaper.drill.toolbox import Toolbox
from reaper.drill.worker_faults import WorkerFaults

STEP_S = 3_600.0
"""By how much a clock is set."""


@dataclass(slots=True)
class Injector:
    """Plays the faults of one act."""

    tools: Toolbox
    missed: list[MissedFault] = field(default_factory=list)
    open: int = 0
    """Faults that are not over yet."""
    _workers: WorkerFaults = field(init=False)
    _leaders: LeaderFaults = field(init=False)
    _groups: GroupFaults = field(init=False)
    _consumers: ConsumerFaults = field(init=False)
    _gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self._workers = WorkerFaults(self.tools)
        self._leaders = LeaderFaults(self.tools, self._workers)
        self._groups = GroupFaults(self.tools)
        self._consumers = ConsumerFaults(self.tools, self._workers)
        self._gate = Gate(self.tools)

    async def run(self, faults: Sequence[Fault]) -> None:
        """Inject ``faults``, timed from now; return when all are over."""
        started = anyio.current_time()
        self.open = len(faults)
        async with anyio.create_task_group() as group:
            for fault in faults:
                group.start_soon(self._inject, fault, started)

    async def _inject(self, fault: Fault, started: float) -> None:
        await anyio.sleep_until(started + fault.at.total_seconds())
        stage = self.tools.stage
        gated = stage.settings.chaos is not None and stage.recovery.promises
        why_not = await (self._gate.play(fault, self._play) if gated else self._play(fault))
        if why_not:
            self.missed.append(MissedFault(fault.kind, why_not))
            self.tools.announce(f"{fault.kind} is left out: {why_not}")
        self.open -= 1

    async def _play(self, fault: Fault) -> str:
        """Inject one fault; return why it could not be, or nothing."""
        workers, leaders, groups = self._workers, self._leaders, self._groups
        plays: Mapping[FaultKind, Callable[[], Awaitable[str]]] = {
            FaultKind.KILL_WORKER: workers.kill_worker,
            FaultKind.KILL_WORKERS: partial(workers.kill_workers, fault),
            FaultKind.PAUSE_WORKER: partial(workers.pause_worker, fault),
            FaultKind.POISON: partial(workers.poison, fault),
            FaultKind.LONG_JOBS: partial(workers.long_jobs, fault),
            FaultKind.KILL_LEADER: leaders.kill_leader,
            FaultKind.PAUSE_LEADER: leaders.pause_leader,
            FaultKind.KILL_REAPERS: partial(leaders.kill_reapers, fault),
            FaultKind.PAUSE_REDIS: partial(self._pause_redis, fault),
            FaultKind.CLOCK_STEP: partial(self._set_clock, fault),
            FaultKind.SHORTEN_VISIBILITY: groups.shorten_visibility,
            FaultKind.DESTROY_GROUP: groups.destroy,
            FaultKind.DELETE_CONSUMER: partial(self._consumers.delete, fault),
        }
        return await plays[fault.kind]()

    async def _set_clock(self, fault: Fault) -> str:
        """Set the server's clock, as an administrator does, or a machine that has found its time server at last."""
        clock = self.tools.stage.server.clock
        assert clock is not None
        injected = InjectedFault(FaultKind.CLOCK_STEP, fault.amount, time.time())
        clock.step_to(STEP_S if fault.amount == "ahead" else -STEP_S)
        await self.tools.note(injected, f"the clock of Redis is set {fault.amount} by {STEP_S / 3600:g} h")
        return ""

    async def _pause_redis(self, fault: Fault) -> str:
        """Stop the server itself, as a machine does that swaps or is being moved: connections stay, nothing answers."""
        server, supervisor = self.tools.stage.server, self.tools.supervisor
        assert server.pid is not None
        assert fault.lasts is not None
        seconds = fault.lasts.total_seconds()
        injected = InjectedFault(FaultKind.PAUSE_REDIS, f"process {server.pid}", time.time())
        await self.tools.note(injected, f"Redis is stopped for {seconds:g} s")
        supervisor.forgive(seconds + AFTER_PAUSE_S)
        try:
            os.kill(server.pid, signal.SIGSTOP)
            await anyio.sleep(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGCONT)
        self.tools.over(injected, time.time())
        self.tools.announce("Redis goes on")
        return ""
