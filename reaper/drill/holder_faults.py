"""Faults that hit the holder of the group's lease, or all reapers."""

import time
from dataclasses import dataclass, field
from functools import partial

import anyio

from reaper import failpoints
from reaper.drill import queries
from reaper.drill.faults import Fault, FaultKind
from reaper.drill.records import InjectedFault, ProcessRun, Role
from reaper.drill.toolbox import PATIENCE_S, Toolbox
from reaper.drill.worker_faults import NOBODY_BUSY, WorkerFaults
from workers.protocol.events import EventName

FAILPOINT = "recover.before_write"
"""Between deciding and writing, when the holder has chosen the entries to recover and has not sent the call."""
ARMED_BEFORE_DUE_S = 0.25
"""Early enough for a busy machine. A holder that is stopped too early continues, and is stopped again."""


@dataclass(slots=True)
class HolderFaults:
    """Each method injects one fault, and returns the reason if it could not. One fault is played at a time."""

    tools: Toolbox
    workers: WorkerFaults
    _one: anyio.Lock = field(default_factory=anyio.Lock)

    async def kill_holder(self, _fault: Fault) -> str:
        """Kill the reaper that holds the lease, as soon as one does."""
        async with self._one:
            found = await self.tools.once(self._holding)
            if not found:
                return "no reaper held the lease"
            run, holder = found
            self.tools.supervisor.kill(run)
            await self.tools.note(
                InjectedFault(FaultKind.KILL_HOLDER, run.name, run.killed_at or time.time(), holder),
                f"kill -9 of the holder {run.name}",
            )
            return ""

    async def kill_reapers(self, fault: Fault) -> str:
        """Kill all reapers now, and start none again while the fault lasts."""
        supervisor, holder = self.tools.supervisor, await queries.holder(self.tools.stage)
        supervisor.hold_back(Role.REAPER)
        try:
            killed = [run for run in supervisor.alive(Role.REAPER) if supervisor.kill(run)]
            names = ", ".join(run.name for run in killed) or "all were about to start"
            at = killed[0].killed_at if killed else None
            injected = InjectedFault(FaultKind.KILL_REAPERS, names, at or time.time(), holder)
            await self.tools.note(injected, f"kill -9 of all reapers ({names}); none runs for {fault.lasts_s:g} s")
            await anyio.sleep(fault.lasts_s)
            self.tools.over(injected, "reapers are started again")
        finally:
            supervisor.let_start(Role.REAPER)
        return ""

    async def _holding(self) -> tuple[ProcessRun, str] | None:
        holder = await queries.holder(self.tools.stage)
        for run in self.tools.supervisor.alive(Role.REAPER):
            if queries.belongs_to(holder, run.name):
                return run, holder
        return None

    async def pause_holder(self, fault: Fault) -> str:
        """Stop the holder between deciding and writing, wait for another one, and let the first one continue."""
        tools, folder = self.tools, self.tools.stage.failpoints
        async with self._one:
            stranded = await self.workers.kill_busy_workers(fault, ", so that there is something to recover")
            if not stranded:
                return NOBODY_BUSY
            earliest_due_s = tools.visibility_s - max(row.idle_ms for row in stranded) / 1000
            await anyio.sleep(max(0.0, earliest_due_s - ARMED_BEFORE_DUE_S))
            paused = await tools.within(PATIENCE_S, self._catch_holder)
            failpoints.disarm(folder, FAILPOINT)
            if not paused:
                late = self._claimant()
                if late:  # it has passed the failpoint at the last moment
                    await tools.within(PATIENCE_S, partial(tools.supervisor.is_paused, late))
                    tools.supervisor.resume(late)
                return "no holder was about to recover a job"
            try:
                await self._let_another_hold(paused)
            finally:
                tools.supervisor.resume(paused)
            return ""

    async def _catch_holder(self) -> ProcessRun | None:
        """Return the holder once it is stopped with something overdue in its hands.

        Timers are hints, so most calls are about jobs that were settled long ago. A holder that was stopped before
        one of these continues at once.
        """
        folder, supervisor = self.tools.stage.failpoints, self.tools.supervisor
        if failpoints.is_armed(folder, FAILPOINT):
            return None  # asked first, because arming it again forgets the reaper that has passed it
        caught = self._claimant()
        if caught and not supervisor.is_paused(caught):
            return None  # it is about to stop itself, and a SIGCONT before that would be lost
        if caught and await self._anything_overdue():
            return caught
        failpoints.arm(folder, FAILPOINT, "stop")
        if caught:
            supervisor.resume(caught)
        return None

    def _claimant(self) -> ProcessRun | None:
        """Return the reaper that has passed the armed failpoint, if it lives."""
        pid = failpoints.claimed_by(self.tools.stage.failpoints, FAILPOINT)
        return next((run for run in self.tools.supervisor.alive(Role.REAPER) if run.pid == pid), None)

    async def _anything_overdue(self) -> bool:
        rows = await queries.pending(self.tools.stage)
        return any(row.idle_ms >= self.tools.visibility_s * 1000 for row in rows)

    async def _let_another_hold(self, paused: ProcessRun) -> None:
        tools, stage = self.tools, self.tools.stage
        at, holder, fenced = time.time(), await queries.holder(stage), tools.witness.counts[EventName.FENCED]
        fault = InjectedFault(FaultKind.PAUSE_HOLDER, paused.name, at, holder)
        await tools.note(fault, f"the holder {paused.name} is paused between deciding and writing")

        async def another_holds() -> bool:
            return await queries.holder(stage) not in ("", holder)

        async def nothing_overdue() -> bool:
            return not await self._anything_overdue()

        await tools.within(PATIENCE_S + stage.settings.ttl.total_seconds(), another_holds)
        await tools.within(PATIENCE_S, nothing_overdue)
        tools.supervisor.resume(paused)
        tools.over(fault, f"{paused.name} continues, as if it still held the lease")
        await tools.within(PATIENCE_S, lambda: tools.witness.counts[EventName.FENCED] > fenced)
