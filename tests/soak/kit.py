"""The parts and the judge of the project's own drills."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path

from reaper.drill.evidence import Evidence
from reaper.drill.faults import Fault, FaultKind
from reaper.drill.kit import Kit, Play
from reaper.drill.ledger import Ledger, build_ledger, objections
from reaper.drill.records import InjectedFault, Role, Step
from reaper.drill.settings import DrillSettings
from reaper.drill.stage import Stage
from reaper.drill.toolbox import Toolbox
from reaper.drill.worker_faults import WorkerFaults
from tests.soak.consumer_faults import ConsumerFaults
from tests.soak.gate import Gate
from tests.soak.group_faults import GroupFaults
from tests.soak.kinds import SoakKind
from tests.soak.planned_faults import PlannedFaults
from tests.soak.server_faults import ServerFaults
from tests.soak.servers import SoakServer, soak_server
from tests.soak.settings import SoakSettings
from workers.protocol.events import EventName


class SoakKit(Kit):
    """All faults."""

    def server(self, settings: DrillSettings, folder: Path) -> AbstractAsyncContextManager[SoakServer]:
        """Give the server of a drill. Raises NoServerError."""
        assert isinstance(settings, SoakSettings)
        return soak_server(settings, folder)

    async def plays(self, tools: Toolbox) -> Mapping[str, Play]:
        """Return a function for each kind of fault. In a chaos, each waits until it may come."""
        settings = tools.stage.settings
        assert isinstance(settings, SoakSettings)
        settings.write_reaper_settings(tools.stage.reaper_settings, tools.visibility_s)
        servers, groups, planned = ServerFaults(tools), GroupFaults(tools), PlannedFaults(tools)
        plays: dict[str, Play] = {
            **await super().plays(tools),
            SoakKind.PAUSE_CLIENTS: planned.pause_clients,
            SoakKind.FAIL_OVER: planned.fail_over,
            SoakKind.SHUT_DOWN: planned.shut_down,
            SoakKind.RESTART_REDIS: servers.restart,
            SoakKind.FILL_REDIS: servers.fill,
            SoakKind.CUT_CONNECTIONS: servers.cut,
            SoakKind.CLOCK_STEP: servers.set_clock,
            SoakKind.SHORTEN_VISIBILITY: groups.shorten_visibility,
            SoakKind.DESTROY_GROUP: groups.destroy,
            SoakKind.DELETE_CONSUMER: ConsumerFaults(tools, WorkerFaults(tools)).delete,
        }
        if not _is_chaos(tools.stage) or not tools.stage.recovery.promises:
            return plays
        gate = Gate(tools)
        return {kind: partial(_gated, gate, play) for kind, play in plays.items()}

    async def judge(self, evidence: Evidence, stage: Stage) -> tuple[Ledger, list[str]]:
        """Judge with the effects of faults of Redis and of third parties.

        In a chaos, a fault may find no target any more. Most of them must find one.
        """
        evidence = replace(
            evidence,
            faults=[_with_reported_losses(fault, evidence) for fault in evidence.faults],
            ends_kept=SoakKind.DESTROY_GROUP not in stage.settings.kinds,
            ids_are_times=SoakKind.CLOCK_STEP not in stage.settings.kinds,
        )
        ledger, asked = build_ledger(evidence), stage.settings.faults_for(stage.recovery)
        kinds, judged = [fault.kind for fault in asked], ledger
        if _is_chaos(stage):
            kinds, judged = [fault.kind for fault in ledger.faults], replace(ledger, missed=())
        found = [*objections(judged, kinds), *_robbed(evidence)]
        if _is_chaos(stage) and 2 * len(ledger.missed) > len(asked):
            found.append(f"of {len(asked)} faults that were drawn, {len(ledger.missed)} found nothing to hit")
        return ledger, found


def _is_chaos(stage: Stage) -> bool:
    assert isinstance(stage.settings, SoakSettings)
    return stage.settings.chaos is not None


async def _gated(gate: Gate, play: Play, fault: Fault) -> str:
    return await gate.play(fault, play)


def _with_reported_losses(fault: InjectedFault, evidence: Evidence) -> InjectedFault:
    """Excuse the lost deliveries of a deleted consumer only if a process has reported that it is gone."""
    if fault.kind != SoakKind.DELETE_CONSUMER:
        return fault
    reported = (str(event.data.get("consumer")) for event in evidence.named(EventName.LOST_CONSUMER))
    runs = {run.name for consumer in reported if (run := evidence.process_named(consumer))}
    return fault if fault.target in runs else replace(fault, jobs=())


def _robbed(evidence: Evidence) -> list[str]:
    """Name jobs that ran in a live worker when the visibility timeout was shortened, and were recovered by that.

    They were started again before they would have been due by the timeout that the worker knew. Jobs of a worker that
    was stopped meanwhile are lost to it by that.
    """
    moments = [fault.at for fault in evidence.faults if fault.kind == SoakKind.SHORTEN_VISIBILITY]
    stops = [fault for fault in evidence.faults if fault.kind == FaultKind.PAUSE_WORKER]
    robbed = []
    for n, starts in evidence.lines_of(Step.START).items():
        for before, line in pairwise(starts):
            run = evidence.process_of(before)
            if run is None or run.role is not Role.WORKER or not run.lived_at(line.at):
                continue
            stopped = any(
                stop.target == run.name and stop.at <= line.at and before.at <= (stop.until or inf) for stop in stops
            )
            soon = any(before.at <= at <= line.at < at + evidence.visibility_s for at in moments)
            if soon and not stopped:
                robbed.append(n)
    return [f"jobs recovered from live workers by a shorter visibility timeout: {sorted(robbed)[:5]}"] if robbed else []
