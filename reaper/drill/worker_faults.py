"""Faults that hit workers, and jobs that are put in on purpose."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from reaper.drill import queries
from reaper.drill.faults import LONG_JOBS, Fault, FaultKind
from reaper.drill.records import WORKERS, InjectedFault, ProcessRun, Role
from reaper.drill.toolbox import Toolbox
from workers.protocol.messages import Pending, counted

MANY, WAIT_FOR_MANY_S = 4, 5.0
"""Jobs in flight of the worker to kill, and seconds after which one is enough."""
NOBODY_BUSY = "no worker had jobs in flight"
STAND_STILL_S = 5.0
"""How long to wait until a process has stopped, on a busy machine."""


@dataclass(slots=True)
class WorkerFaults:
    """Each method injects one fault, and returns the reason if it could not."""

    tools: Toolbox

    async def kill_worker(self, fault: Fault) -> str:
        """Kill a worker that has jobs in flight, or the workers that the fault names once one of them has."""
        return "" if await self.kill_busy_workers(fault) else NOBODY_BUSY

    async def kill_busy_workers(self, fault: Fault, why: str = "") -> list[Pending]:
        """Kill one worker or several, and return the jobs that they had in flight. None if no worker is left."""
        asked_at = anyio.current_time()

        async def strike() -> list[ProcessRun] | None:
            return await self._strike(fault, 1 if anyio.current_time() - asked_at > WAIT_FOR_MANY_S else MANY)

        killed = await self.tools.once(strike)
        if not killed:
            return []
        names = [run.name for run in killed]
        held = await queries.pending_by_process(self.tools.stage, names)
        stranded = [row for rows in held.values() for row in rows]
        target, at = ", ".join(names), killed[0].killed_at or time.time()
        await self.tools.note(
            InjectedFault(FaultKind.KILL_WORKER, target, at, in_flight=len(stranded)),
            f"kill -9 of worker {target} with {counted(len(stranded), 'job')} in flight{why}",
        )
        return stranded

    async def _strike(self, fault: Fault, least: int) -> list[ProcessRun] | None:
        """Kill the workers to hit. None if there is none now."""
        victims = await self._victims(fault, least)
        stopped = await self._caught(victims) if victims else []
        return [run for run in stopped if self.tools.supervisor.kill(run)] or None

    async def _victims(self, fault: Fault, least: int) -> list[ProcessRun]:
        """Return the worker with the most jobs in flight, if it has ``least``, or the workers that ``fault`` names."""
        if fault.amount == "1":
            found = await self.busiest(least)
            return [found[0]] if found else []
        slots = fault.slots(self.tools.stage.settings.workers)
        named = [run for run in self.tools.supervisor.alive(*WORKERS) if run.slot in slots]
        held = await queries.pending_by_process(self.tools.stage, [run.name for run in named])
        return named if any(held.values()) else []

    async def kill_if_it_may_crash(self, run: ProcessRun) -> bool:
        """Kill a worker, unless it has ended or runs a job on its last delivery. Return whether it was killed."""
        return bool(await self._caught([run])) and self.tools.supervisor.kill(run)

    async def _caught(self, runs: Sequence[ProcessRun]) -> list[ProcessRun]:
        """Stop workers, and return those that may crash, if any is busy. They stay stopped, and the others continue.

        A worker that runs a job on its last delivery is spared. Another crash would make a dead letter of the job, and
        a drill must know its dead letters beforehand. The worker is stopped first, because otherwise it could begin a
        job on its last delivery meanwhile.
        """
        tools, supervisor = self.tools, self.tools.supervisor
        stopped = list(runs)

        try:
            for run in runs:
                supervisor.pause(run)
            await tools.within(STAND_STILL_S, lambda: all(map(supervisor.is_paused, runs)))
            held = await queries.pending_by_process(tools.stage, [run.name for run in runs])
            busy = runs if any(held.values()) else []  # their jobs may have ended before they were stopped
            stopped = [run for run in busy if not await queries.must_not_crash(tools.stage, held[run.name])]
        except BaseException:
            stopped = []
            raise
        finally:
            for run in runs:
                if run not in stopped:
                    supervisor.resume(run)
        return stopped

    async def busiest(self, least: int, *roles: Role) -> tuple[ProcessRun, int] | None:
        """Return the worker with the most jobs in flight, at least ``least``, and their number.

        Any worker, or one of these roles.
        """
        stage, workers = self.tools.stage, self.tools.supervisor.alive(*(roles or WORKERS))
        held = await queries.pending_by_process(stage, [run.name for run in workers])
        for run in sorted(workers, key=lambda run: -len(held[run.name])):
            if len(held[run.name]) >= least and not await queries.must_not_crash(stage, held[run.name]):
                return run, len(held[run.name])
        return None

    async def pause_worker(self, fault: Fault) -> str:
        """Stop the worker with the most jobs in flight. They are recovered while it still seems to run them."""
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
        tools.over(injected, f"worker {run.name} continues")
        return ""

    async def _freeze(self) -> tuple[ProcessRun, int] | None:
        """Stop the worker with the most jobs in flight. Return None if no worker has any."""
        found = await self.busiest(1)
        return found if found and await self._caught([found[0]]) else None

    async def poison(self, fault: Fault) -> str:
        """Enqueue poison jobs."""
        for job in await self.tools.producer.poison(int(fault.amount)):
            await self.tools.note(
                InjectedFault(FaultKind.POISON, f"job {job.n}", job.at),
                f"job {job.n} is poison: it kills every worker that takes it",
            )
        return ""

    async def long_jobs(self, fault: Fault) -> str:
        """Enqueue more jobs, of a known duration."""
        jobs = await self.tools.producer.add(int(fault.amount), fault.lasts)
        await self.tools.note(
            InjectedFault(LONG_JOBS, f"jobs {jobs[0].n} to {jobs[-1].n}", jobs[0].at, in_flight=len(jobs)),
            f"{len(jobs)} more jobs at once, {fault.lasts_s:g} s each",
        )
        return ""
