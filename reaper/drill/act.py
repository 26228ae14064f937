"""One act: start everybody, replay the trace, inject the faults, wait for the end, stop everybody, account for all."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from reaper.drill import queries
from reaper.drill.evidence import Evidence
from reaper.drill.injection import PATIENCE_S, Injector
from reaper.drill.ledger import Ledger, build_ledger, objections
from reaper.drill.live import Scene, Screen
from reaper.drill.producer import Producer
from reaper.drill.records import Role
from reaper.drill.report import as_json
from reaper.drill.stage import Stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.trace import PlannedJob
from reaper.drill.witness import LOOK_INTERVAL_S, Witness
from workers.protocol.errors import StreamReaperError

READY_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 0.1


class NotReadyError(StreamReaperError):
    """Not everybody came up in time. The message names who is missing, and what they printed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an act ended."""

    stage: Stage
    started_at: float
    ledger: Ledger
    objections: tuple[str, ...]
    """What is wrong, in sentences; nothing = the act went as promised."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for machines."""
        return {
            "recovery": self.stage.recovery.name,
            **as_json(self.ledger, started_at=self.started_at, objections=self.objections),
            "redis_version": self.stage.server.version,
            "settings": self.stage.settings.as_json(),
        }


async def play(stage: Stage, jobs: Sequence[PlannedJob], screen: Screen) -> Outcome:
    """Play one act. Raises ProcessFailedError, NotReadyError, and what redis-py raises; leaves no process behind."""
    await stage.client.xgroup_create(stage.keys.stream, stage.keys.group, id="0", mkstream=True)
    producer, witness = Producer(stage, jobs), Witness(stage)
    scene = Scene(stage, producer, witness)
    supervisor = scene.supervisor
    injector = Injector(stage, supervisor, producer, witness, scene.announce)
    clock_ahead_s = await _clock_ahead_s(stage)
    async with anyio.create_task_group() as everybody:
        strangers = await queries.waiting_readers(stage)
        await everybody.start(supervisor.run, stage.slots())
        await _until_ready(stage, supervisor, strangers)
        scene.begin()
        async with anyio.create_task_group() as playing:
            playing.start_soon(witness.run)
            playing.start_soon(screen.run, scene)
            playing.start_soon(producer.run)
            playing.start_soon(injector.run, stage.settings.faults_for(stage.recovery))
            await _until_over(stage, producer, injector)
            await anyio.sleep(3 * LOOK_INTERVAL_S)  # so that the screen shows the end
            playing.cancel_scope.cancel()
        # Workers first, so that their last settlements are in before the leader goes.
        await supervisor.stop(Role.WORKER, Role.BARE_WORKER)
        await supervisor.stop(Role.REAPER)
    await witness.look()
    evidence = Evidence(
        enqueued=producer.enqueued,
        lines=witness.lines,
        events=witness.events,
        processes=supervisor.history,
        remains=await queries.remains(stage),
        faults=injector.injected,
        missed=injector.missed,
        visibility_s=stage.settings.visibility_timeout.total_seconds(),
        clock_ahead_s=clock_ahead_s,
    )
    ledger = build_ledger(evidence)
    asked_for = [fault.kind for fault in stage.settings.faults_for(stage.recovery)]
    return Outcome(stage, scene.started_at, ledger, tuple(objections(ledger, asked_for)))


async def _clock_ahead_s(stage: Stage) -> float:
    """Return how far the server's clock is ahead of ours (of our machine: all processes run here)."""
    before = time.time()
    seconds, microseconds = await stage.client.time()
    return float(seconds + microseconds / 1e6 - (before + time.time()) / 2)


async def _until_ready(stage: Stage, supervisor: Supervisor, strangers: int) -> None:
    """Wait until every worker waits for jobs, beside ``strangers`` of a shared Redis, and somebody leads.

    Raises NotReadyError.
    """
    deadline = anyio.current_time() + READY_TIMEOUT_S
    while missing := await _missing(stage, strangers):
        if anyio.current_time() > deadline:
            break
        await anyio.sleep(CHECK_INTERVAL_S)
    else:
        return
    raise NotReadyError(f"{missing} within {READY_TIMEOUT_S:g} s. Printed was:\n{supervisor.logs()}")


async def _missing(stage: Stage, strangers: int) -> str:
    """Say what is not there yet; empty = everything is."""
    waiting = await queries.waiting_readers(stage) - strangers
    if waiting < stage.settings.workers:
        return f"{waiting} of {stage.settings.workers} workers were ready"
    if stage.recovery.by_reapers and not await queries.fence(stage):
        return "no reaper led"
    return ""


async def _until_over(stage: Stage, producer: Producer, injector: Injector) -> None:
    """Wait until nothing more will happen: by what Redis shows, or in the end by the clock."""
    settings = stage.settings
    last_job = producer.jobs[-1].at.total_seconds() if producer.jobs else 0.0
    last_fault = max((fault.at.total_seconds() for fault in settings.faults), default=0.0)
    patience = 10 * settings.visibility_timeout.total_seconds() + 4 * PATIENCE_S
    with anyio.move_on_after(max(last_job, last_fault) + patience):
        while not (producer.finished and injector.open == 0 and await _at_rest(stage)):
            if producer.finished and injector.open == injector.waiting and await _at_rest(stage):
                injector.nothing_left = True
            await anyio.sleep(CHECK_INTERVAL_S)


async def _at_rest(stage: Stage) -> bool:
    """Tell whether every job has come to its end; without recovery, also those that are stuck."""
    view = await queries.look(stage, queries.View())
    if stage.recovery.by_reapers or view.ready:
        return view.outstanding == 0
    overdue_ms = 1.25 * stage.settings.visibility_timeout.total_seconds() * 1000
    return all(row.idle_ms > overdue_ms for row in await queries.pending(stage))
