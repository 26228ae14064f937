"""Plays one act. It starts all processes, replays the trace, injects the faults, and accounts for each job."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from reaper.drill import cast, queries
from reaper.drill.evidence import Evidence
from reaper.drill.history import read_state
from reaper.drill.kit import Injector, Kit
from reaper.drill.ledger import Ledger
from reaper.drill.live import Screen
from reaper.drill.meters import Meters, Usage
from reaper.drill.producer import Producer
from reaper.drill.queries import View
from reaper.drill.records import WORKERS, Role
from reaper.drill.report import as_json, usage_as_json
from reaper.drill.stage import Stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.toolbox import Toolbox
from reaper.drill.trace import PlannedJob
from reaper.drill.witness import Witness
from workers.protocol.errors import StreamReaperError

READY_TIMEOUT_S = 120.0
CHECK_INTERVAL_S = 0.1


class NotReadyError(StreamReaperError):
    """A process was not ready in time. The message names it, with the output of all processes."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an act ended."""

    stage: Stage
    started_at: float
    ledger: Ledger
    objections: tuple[str, ...]
    """Broken promises, in sentences."""
    usage: Usage
    """From the first job until all work was done."""
    processes: Mapping[str, int]
    """Processes that run at a time, by kind."""
    started: int
    """Processes that were started, restarts included."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for machines."""
        stage = self.stage
        return {
            "recovery": stage.recovery.name,
            **as_json(self.ledger, started_at=self.started_at, objections=self.objections),
            "left_out": [
                {"asked": str(asked), "played": str(played) if played else None, "why": "no reaper runs"}
                for asked, played in stage.settings.left_out(stage.recovery)
            ],
            **usage_as_json(self.usage, jobs=self.ledger.enqueued),
            "processes": dict(self.processes),
            "processes_started": self.started,
            "keys": {
                "stream": stage.keys.stream,
                "group": stage.keys.group,
                "journal": stage.keys.journal,
                "namespace_journal": stage.namespace.journal,
                "dead_letters": stage.keys.dead,
            },
            "server": stage.server.release,
            "settings": stage.settings.as_json(stage.recovery),
        }


async def play(stage: Stage, jobs: Sequence[PlannedJob], screen: Screen, kit: Kit) -> Ending:
    """Play one act, and leave no process behind. Raises ProcessFailedError, NotReadyError and errors of redis-py."""
    meters = Meters(stage.client, counts=stage.server.single)
    await stage.client.xgroup_create(stage.keys.stream, stage.keys.group, id="0", mkstream=True)
    supervisor, witness = Supervisor(stage.folder), Witness(stage)
    tools = Toolbox(stage, supervisor, Producer(stage, jobs), witness)
    injector = Injector(tools, await kit.plays(tools))
    slots, clock_ahead_s = cast.slots(stage), await _clock_ahead_s(stage)
    async with anyio.create_task_group() as everybody:
        strangers = await queries.waiting_readers(stage)
        await everybody.start(supervisor.run, slots)
        await _until_ready(stage, supervisor, strangers)
        before = await meters.read(supervisor.measure())
        tools.begin()
        async with anyio.create_task_group() as playing:
            playing.start_soon(witness.run)
            playing.start_soon(screen, tools)
            playing.start_soon(tools.producer.run)
            playing.start_soon(injector.run, stage.settings.faults_for(stage.recovery))
            await _until_over(stage, injector)
            usage = (await meters.read(supervisor.measure())).since(before)
            await anyio.sleep(3 * stage.settings.look_s)  # so that the screen shows the end
            playing.cancel_scope.cancel()
        # Workers first, so that the lease is held until their last settlements.
        await supervisor.stop(*WORKERS)
        await supervisor.stop(Role.REAPER)
    await witness.look()
    ledger, objections = await kit.judge(await _evidence(injector, clock_ahead_s), stage)
    return Ending(
        stage=stage,
        started_at=tools.started_at,
        ledger=ledger,
        objections=tuple(objections),
        usage=usage,
        processes=Counter(str(slot.role) for slot in slots),
        started=len(supervisor.history),
    )


async def _evidence(injector: Injector, clock_ahead_s: float) -> Evidence:
    """Collect the evidence after the end."""
    tools, stage, settings = injector.tools, injector.tools.stage, injector.tools.stage.settings
    return Evidence(
        enqueued=tools.producer.enqueued,
        lines=tools.witness.lines,
        events=tools.witness.events,
        processes=tools.supervisor.history,
        state=await read_state(stage.client, stage.keys),
        faults=tools.injected,
        missed=injector.missed,
        visibility_s=settings.visibility_timeout.total_seconds(),
        max_deliveries=settings.max_deliveries,
        clock_ahead_s=clock_ahead_s,
    )


async def _clock_ahead_s(stage: Stage) -> float:
    """Return how far the server's clock is ahead of the clock of this machine, in seconds."""
    before = time.time()
    seconds, microseconds = await stage.client.time()
    return float(seconds + microseconds / 1e6 - (before + time.time()) / 2)


async def _until_ready(stage: Stage, supervisor: Supervisor, strangers: int) -> None:
    """Wait until every worker waits for jobs, beside ``strangers`` of a shared Redis, and a reaper holds the lease.

    Raises NotReadyError.
    """
    deadline = anyio.current_time() + READY_TIMEOUT_S
    while missing := await _missing(stage, strangers):
        if anyio.current_time() > deadline:
            printed = supervisor.printed(*supervisor.history)
            raise NotReadyError(f"{missing} within {READY_TIMEOUT_S:g} s. It printed:", *printed)
        await anyio.sleep(CHECK_INTERVAL_S)


async def _missing(stage: Stage, strangers: int) -> str:
    """Name the processes that are not ready yet. Empty if all are."""
    waiting, expected = await queries.waiting_readers(stage) - strangers, stage.settings.workers
    if waiting < expected:
        return f"{waiting} of {expected} readers of {stage.settings.workers} workers were ready"
    if stage.recovery.by_reapers and not await queries.holder(stage):
        return "no reaper held the lease"
    return ""


async def _until_over(stage: Stage, injector: Injector) -> None:
    """Wait until Redis shows that the work is done, or until the longest time is over."""
    interval_s = max(CHECK_INTERVAL_S, stage.settings.look_s / 2)
    tools, view = injector.tools, View()
    with anyio.move_on_after(stage.settings.patience_s(tools.producer.jobs)):
        while True:
            if tools.producer.finished and injector.open <= tools.waiting:
                view = await queries.look(stage, view)
                if await _at_rest(tools, view):
                    if injector.open == 0:
                        return
                    tools.nothing_left = True
            await anyio.sleep(interval_s)


async def _at_rest(tools: Toolbox, view: View) -> bool:
    """Tell whether every job has come to its end. Without recovery, it may also be stuck."""
    if view.outstanding == 0:
        return not any(tools.witness.in_hand(run.pid) > 0 for run in tools.supervisor.alive(Role.BARE_WORKER))
    if view.ready or tools.stage.recovery.promises:
        return False
    overdue_ms = 1.25 * tools.visibility_s * 1000
    return all(row.idle_ms > overdue_ms for row in await queries.pending(tools.stage))
