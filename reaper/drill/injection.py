"""Injects the faults: each at its time or, where it needs something to hit, as soon after as there is something."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio

from reaper.drill.consumer_faults import ConsumerFaults
from reaper.drill.failovers import Failovers
from reaper.drill.faults import Fault, FaultKind
from reaper.drill.gate import Gate
from reaper.drill.group_faults import GroupFaults
from reaper.drill.leader_faults import LeaderFaults
from reaper.drill.records import MissedFault
from reaper.drill.server_faults import ServerFaults
from reaper.drill.toolbox import Toolbox
from reaper.drill.worker_faults import WorkerFaults


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
    _servers: ServerFaults = field(init=False)
    _consumers: ConsumerFaults = field(init=False)
    _failovers: Failovers = field(init=False)
    _gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self._workers = WorkerFaults(self.tools)
        self._leaders = LeaderFaults(self.tools, self._workers)
        self._groups = GroupFaults(self.tools)
        self._servers = ServerFaults(self.tools)
        self._consumers = ConsumerFaults(self.tools, self._workers)
        self._failovers = Failovers(self.tools)
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
        workers, leaders, groups, servers = self._workers, self._leaders, self._groups, self._servers
        plays: Mapping[FaultKind, Callable[[], Awaitable[str]]] = {
            FaultKind.KILL_WORKER: workers.kill_worker,
            FaultKind.KILL_WORKERS: partial(workers.kill_workers, fault),
            FaultKind.PAUSE_WORKER: partial(workers.pause_worker, fault),
            FaultKind.POISON: partial(workers.poison, fault),
            FaultKind.LONG_JOBS: partial(workers.long_jobs, fault),
            FaultKind.KILL_LEADER: leaders.kill_leader,
            FaultKind.PAUSE_LEADER: leaders.pause_leader,
            FaultKind.KILL_REAPERS: partial(leaders.kill_reapers, fault),
            FaultKind.PAUSE_REDIS: partial(servers.pause, fault),
            FaultKind.RESTART_REDIS: partial(servers.restart, fault),
            FaultKind.FILL_REDIS: partial(servers.fill, fault),
            FaultKind.CUT_CONNECTIONS: servers.cut,
            FaultKind.CLOCK_STEP: partial(servers.set_clock, fault),
            FaultKind.KILL_MASTER: partial(self._failovers.kill_master, fault),
            FaultKind.PAUSE_MASTER: partial(self._failovers.pause_master, fault),
            FaultKind.MOVE_SLOT: partial(self._failovers.move_slot, fault),
            FaultKind.SHORTEN_VISIBILITY: groups.shorten_visibility,
            FaultKind.DESTROY_GROUP: groups.destroy,
            FaultKind.DELETE_CONSUMER: partial(self._consumers.delete, fault),
        }
        return await plays[fault.kind]()
