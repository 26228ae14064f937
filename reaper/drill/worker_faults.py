"""Faults that hit workers, and jobs that are put in on purpose."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from reaper.drill import queries
from reaper.drill.faults import Fault, FaultKind
from reaper.drill.records import WORKERS, InjectedFault, ProcessRun, Role
from reaper.drill.toolbox import Toolbox
from workers.protocol.messages import Pending, counted

MANY, WAIT_FOR_MANY_S = 4, 5.0
"""A worker is killed that holds so many jobs; after so many seconds, any worker that holds one."""
NOBODY_BUSY = "no worker had jobs in flight"
STAND_STILL_S = 5.0
"""How long a stopped process is waited for, which a busy machine has not told of its stop yet."""


@dataclass(slots=True)
class WorkerFaults:
    """Each method injects one fault, and returns why it could not, or nothing."""

    tools: Toolbox

    async def kill_worker(self, _fault: Fault) -> str:
        """Kill a worker that holds jobs."""
        return "" if await self.kill_busy_worker() else NOBODY_BUSY

    async def kill_busy_worker(self, why: str = "") -> list[Pending]:
        """Kill the worker that holds the most jobs; return what it held, nothing where nobody ever held any."""
        asked_at = anyio.current_time()

        async def strand() -> tuple[ProcessRun, list[Pending]] | None:
            return await self._strand(1 if anyio.current_time() - asked_at > WAIT_FOR_MANY_S else MANY)

        victim = await self.tools.once(strand)
        if not victim:
            return []
        run, stranded = victim
        await self.tools.note(
            InjectedFault(FaultKind.KILL_WORKER, run.name, run.killed_at or time.time(), in_flight=len(stranded)),
            f"kill -9 of worker {run.name} with {counted(len(stranded), 'job')} in flight{why}",
        )
        return stranded

    async def _strand(self, least: int) -> tuple[ProcessRun, list[Pending]] | None:
        """Kill the worker that holds the most jobs; None where nobody holds ``least`` now.

        One that runs a job on its last delivery is spared: a third crash makes a dead letter of it, as promised, and a
        drill must know its dead letters beforehand.
        """
        found = await self.busiest(least)
        if not found or not await self.kill_if_it_may_crash(found[0]):
            return None
        run = found[0]
        return run, (await queries.pending_by_process(self.tools.stage, [run.name]))[run.name]

    async def kill_if_it_may_crash(self, run: ProcessRun) -> bool:
        """Kill a worker, unless it runs a job on its last delivery, or has ended; return whether that was done."""
        return bool(await self._caught([run])) and self.tools.supervisor.kill(run)

    async def _caught(self, runs: Sequence[ProcessRun]) -> list[ProcessRun]:
        """Stop workers; return those that may crash, stopped still. The others go on.

        One that ran on could begin a job on its last delivery between the look and the blow.
        """
        tools, supervisor = self.tools, self.tools.supervisor
        stopped = list(runs)

        async def all_stand() -> bool:
            return all(supervisor.is_paused(run) for run in runs)

        try:
            for run in runs:
                supervisor.pause(run)
            await tools.within(STAND_STILL_S, all_stand)
            held = await queries.pending_by_process(tools.stage, [run.name for run in runs])
            stopped = [run for run in runs if not await queries.must_not_crash(tools.stage, held[run.name])]
        except BaseException:
            stopped = []
            raise
        finally:
            for run in runs:
                if run not in stopped:
                    supervisor.resume(run)
        return stopped

    async def busiest(self, least: int, *roles: Role) -> tuple[ProcessRun, int] | None:
        """Return the worker that holds the most jobs, and how many, of those that hold ``least`` and may be hit.

        Any worker, or one of these roles.
        """
        stage, workers = self.tools.stage, self.tools.supervisor.alive(*(roles or WORKERS))
        held = await queries.pending_by_process(stage, [run.name for run in workers])
        for run in sorted(workers, key=lambda run: -len(held[run.name])):
            if len(held[run.name]) >= least and not await queries.must_not_crash(stage, held[run.name]):
                return run, len(held[run.name])
        return None

    async def kill_workers(self, fault: Fault) -> str:
        """Kill the workers of these slots now, whatever they hold."""
        stage, slots = self.tools.stage, fault.slots(self.tools.stage.settings.workers)
        victims = [run for run in self.tools.supervisor.alive(*WORKERS) if run.slot in slots]
        if stage.settings.spares_last_deliveries and stage.recovery.promises:
            victims = await self._caught(victims)
        killed = [run for run in victims if self.tools.supervisor.kill(run)]
        if not killed:
            return "none of them was alive, or each ran a job on its last delivery"
        names = ", ".join(run.name for run in killed)
        in_flight = await queries.held_by(self.tools.stage, [run.name for run in killed])
        await self.tools.note(
            InjectedFault(FaultKind.KILL_WORKERS, names, killed[0].killed_at or time.time(), in_flight=in_flight),
            f"kill -9 of workers {names} with {counted(in_flight, 'job')} in flight",
        )
        return ""

    async def pause_worker(self, fault: Fault) -> str:
        """Stop the worker that holds the most jobs: they are recovered while it seems to run them still."""
        tools, seconds = self.tools, fault.lasts_s
        victim = await tools.once(self._freeze)
        if not victim:
            return NOBODY_BUSY
        run, in_flight = victim
        injected = InjectedFault(FaultKind.PAUSE_WORKER, run.name, time.time(), in_flight=in_flight)
        try:
            await tools.note(
                injected, f"worker {run.name} is stopped for {seconds:g} s, with {counted(in_flight, 'job')} in flight"
            )
            await anyio.sleep(seconds)
        finally:
            tools.supervisor.resume(run)
        tools.over(injected, f"worker {run.name} goes on")
        return ""

    async def _freeze(self) -> tuple[ProcessRun, int] | None:
        """Stop the worker that holds the most jobs; None where none holds any. Spares whom `_strand` spares."""
        found = await self.busiest(1)
        return found if found and await self._caught([found[0]]) else None

    async def poison(self, fault: Fault) -> str:
        """Put poison jobs in."""
        for job in await self.tools.producer.poison(int(fault.amount)):
            await self.tools.note(
                InjectedFault(FaultKind.POISON, f"job {job.n}", job.at),
                f"job {job.n} is poison: it kills every worker that takes it",
            )
        return ""

    async def long_jobs(self, fault: Fault) -> str:
        """Put further jobs in, of a known duration."""
        jobs = await self.tools.producer.add(int(fault.amount), fault.lasts)
        await self.tools.note(
            InjectedFault(FaultKind.LONG_JOBS, f"jobs {jobs[0].n} to {jobs[-1].n}", jobs[0].at, in_flight=len(jobs)),
            f"{len(jobs)} more jobs at once, {fault.lasts_s:g} s each",
        )
        return ""
