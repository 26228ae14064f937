"""Injects the faults: each at its time or, where it needs something to hit, as soon after as there is something."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import anyio

from reaper import failpoints
from reaper.drill import queries
from reaper.drill.faults import Fault, FaultKind
from reaper.drill.producer import Producer
from reaper.drill.records import InjectedFault, MissedFault, ProcessRun, Role
from reaper.drill.stage import Stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.witness import Witness
from workers.protocol.events import EventName, encode_data
from workers.protocol.messages import Pending

FAILPOINT = "recover.before_write"
"""Between deciding and writing: the leader has chosen what to recover and has not sent it yet."""
PATIENCE_S = 15.0
"""How long the effect of a fault is waited for, beyond the timeouts it depends on."""

ARMED_BEFORE_DUE_S = 0.03
MANY, WAIT_FOR_MANY_S = 4, 5.0
"""A worker is killed that holds so many jobs; after so many seconds, any worker that holds one."""
NOBODY_BUSY = "no worker had jobs in flight"

_POLL_S = 0.01
_T = TypeVar("_T")


@dataclass(slots=True)
class Injector:
    """Plays the faults of one act. ``announce`` is told of each in a sentence."""

    stage: Stage
    supervisor: Supervisor
    producer: Producer
    witness: Witness
    announce: Callable[[str], None]
    injected: list[InjectedFault] = field(default_factory=list)
    missed: list[MissedFault] = field(default_factory=list)
    open: int = 0
    """Faults that are not over yet."""
    waiting: int = 0
    """Those of them whose time has come and that find nothing to hit."""
    nothing_left: bool = False
    """Set from outside: there will be nothing more to hit, so nobody needs to wait for it."""
    _leader: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self, faults: Sequence[Fault]) -> None:
        """Inject ``faults``, timed from now; return when all are over."""
        started = anyio.current_time()
        self.open = len(faults)
        async with anyio.create_task_group() as group:
            for fault in faults:
                group.start_soon(self._inject, fault, started)

    async def _inject(self, fault: Fault, started: float) -> None:
        await anyio.sleep_until(started + fault.at.total_seconds())
        why_not = await self._play(fault.kind)
        if why_not:
            self.missed.append(MissedFault(fault.kind, why_not))
            self.announce(f"{fault.kind} is left out: {why_not}")
        self.open -= 1

    async def _play(self, kind: FaultKind) -> str:
        """Inject one fault; return why it could not be, or nothing."""
        match kind:
            case FaultKind.KILL_WORKER:
                return "" if await self._kill_worker() else NOBODY_BUSY
            case FaultKind.POISON:
                return await self._poison()
            case FaultKind.KILL_LEADER:
                async with self._leader:
                    return await self._kill_leader()
            case FaultKind.PAUSE_LEADER:
                async with self._leader:
                    return await self._pause_leader()

    # ---- workers

    async def _kill_worker(self, why: str = "") -> list[Pending]:
        """Kill the worker that holds the most jobs; return what it held, nothing where nobody ever held any."""
        asked_at = anyio.current_time()

        async def strand() -> tuple[ProcessRun, list[Pending]] | None:
            return await self._strand(1 if anyio.current_time() - asked_at > WAIT_FOR_MANY_S else MANY)

        victim = await self._once(strand)
        if not victim:
            return []
        run, stranded = victim
        await self._note(
            InjectedFault(FaultKind.KILL_WORKER, run.name, run.killed_at or time.time(), in_flight=len(stranded)),
            f"kill -9 of worker {run.name} with {len(stranded)} jobs in flight{why}",
        )
        return stranded

    async def _strand(self, least: int) -> tuple[ProcessRun, list[Pending]] | None:
        """Kill the worker that holds the most jobs; None where nobody holds ``least`` now.

        One that runs a job on its last delivery is spared: a third crash makes a dead letter of it, as promised, and a
        drill must know its dead letters beforehand.
        """
        workers = self.supervisor.alive(Role.WORKER, Role.BARE_WORKER)
        held = await queries.pending_by_process(self.stage, [run.name for run in workers])
        for run in sorted(workers, key=lambda run: -len(held[run.name])):
            if len(held[run.name]) < least or await queries.must_not_crash(self.stage, held[run.name]):
                continue
            if self.supervisor.kill(run):
                return run, (await queries.pending_by_process(self.stage, [run.name]))[run.name]
        return None

    async def _poison(self) -> str:
        job = await self.producer.poison()
        await self._note(
            InjectedFault(FaultKind.POISON, f"job {job.n}", job.at),
            f"job {job.n} is poison: it kills every worker that takes it",
        )
        return ""

    # ---- leaders

    async def _kill_leader(self) -> str:
        found = await self._once(self._leading)
        if not found:
            return "nobody led"
        run, holder = found
        self.supervisor.kill(run)
        await self._note(
            InjectedFault(FaultKind.KILL_LEADER, run.name, run.killed_at or time.time(), holder),
            f"kill -9 of the leader {run.name}",
        )
        return ""

    async def _leading(self) -> tuple[ProcessRun, str] | None:
        holder = await queries.holder(self.stage)
        for run in self.supervisor.alive(Role.REAPER):
            if queries.belongs_to(holder, run.name):
                return run, holder
        return None

    async def _pause_leader(self) -> str:
        """Stop the leader between deciding and writing, let its lease pass to another, and let it go on."""
        stranded = await self._kill_worker(", so that there is something to recover")
        if not stranded:
            return NOBODY_BUSY
        earliest_due_s = self._visibility_s - max(row.idle_ms for row in stranded) / 1000
        await anyio.sleep(earliest_due_s - ARMED_BEFORE_DUE_S)
        paused = await self._within(PATIENCE_S, self._catch_leader)
        failpoints.disarm(self.stage.failpoints, FAILPOINT)
        if not paused:
            return "no leader came to write a recovery"
        try:
            await self._let_another_lead(paused)
        finally:
            self.supervisor.resume(paused)
        return ""

    async def _catch_leader(self) -> ProcessRun | None:
        """Return the leader once it is stopped with something overdue in its hands.

        Timers are hints, so most calls are about jobs that were settled long ago: a leader that was stopped on its way
        to such a call goes on at once.
        """
        pid = failpoints.claimed_by(self.stage.failpoints, FAILPOINT)
        caught = next((run for run in self.supervisor.alive(Role.REAPER) if run.pid == pid), None)
        if caught and await self._anything_overdue():
            return caught
        if not failpoints.is_armed(self.stage.failpoints, FAILPOINT):
            failpoints.arm(self.stage.failpoints, FAILPOINT, "stop")
        if caught:
            self.supervisor.resume(caught)
        return None

    async def _anything_overdue(self) -> bool:
        rows = await queries.pending(self.stage)
        return any(row.idle_ms >= self._visibility_s * 1000 for row in rows)

    async def _let_another_lead(self, paused: ProcessRun) -> None:
        at, fence = time.time(), await queries.fence(self.stage)
        holder = fence.rpartition(":")[2]
        fault = InjectedFault(FaultKind.PAUSE_LEADER, paused.name, at, holder)
        await self._note(fault, f"the leader {paused.name} is paused between deciding and writing")

        async def another_acts() -> bool:
            return await queries.fence(self.stage) != fence

        async def nothing_overdue() -> bool:
            return not await self._anything_overdue()

        await self._within(PATIENCE_S + self.stage.settings.lease_ttl.total_seconds(), another_acts)
        await self._within(PATIENCE_S, nothing_overdue)
        self.supervisor.resume(paused)
        self.injected[self.injected.index(fault)] = replace(fault, until=time.time())
        self.announce(f"{paused.name} goes on, as if it led still")

        async def term_is_over() -> bool:
            return any(
                event.event in (EventName.LEASE_LOST, EventName.LEASE_RELEASED) and event.data.get("holder") == holder
                for event in self.witness.events
            )

        await self._within(PATIENCE_S, term_is_over)

    # ---- waiting and telling

    @property
    def _visibility_s(self) -> float:
        return self.stage.settings.visibility_timeout.total_seconds()

    async def _once(self, attempt: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """Attempt until something comes of it, or there is nothing left to wait for."""
        result = await attempt()
        self.waiting += 1
        while result is None and not self.nothing_left:
            await anyio.sleep(_POLL_S)
            result = await attempt()
        self.waiting -= 1
        return result

    async def _within(self, seconds: float, attempt: Callable[[], Awaitable[_T]]) -> _T | None:
        """Attempt until something true comes of it; None after ``seconds``."""
        with anyio.move_on_after(seconds):
            while True:
                result = await attempt()
                if result:
                    return result
                await anyio.sleep(_POLL_S)
        return None

    async def _note(self, fault: InjectedFault, sentence: str) -> None:
        self.injected.append(fault)
        self.announce(sentence)
        data = {"kind": fault.kind, "target": fault.target, "holder": fault.holder, "in_flight": fault.in_flight}
        await self.stage.client.execute_command(
            "XADD", self.stage.namespace.journal, "*",
            "event", EventName.FAULT_INJECTED, "job", "", "data", encode_data(data),
        )  # fmt: skip
