"""What a drill is played with: a server, and the faults that it can inject.

The project's own tests play more faults, on more servers, with a kit of their own (`tests/soak`).
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from reaper.drill.evidence import Evidence
from reaper.drill.faults import Fault, FaultKind
from reaper.drill.leader_faults import LeaderFaults
from reaper.drill.ledger import Ledger, objections
from reaper.drill.recoveries import Recovery
from reaper.drill.redis_server import Server, redis_at_hand
from reaper.drill.server_faults import pause_redis
from reaper.drill.settings import DrillSettings
from reaper.drill.stage import Stage
from reaper.drill.toolbox import Toolbox
from reaper.drill.worker_faults import WorkerFaults

Play = Callable[[Fault], Awaitable[str]]
"""Injects a fault, and returns why it could not, or nothing."""


class Kit:
    """The faults of `FaultKind`, on one server."""

    def server(self, settings: DrillSettings, folder: Path) -> AbstractAsyncContextManager[Server]:
        """Give the server of a drill. Raises what `redis_at_hand` raises."""
        return redis_at_hand(settings.redis_url, folder)

    def names(self, run_id: str, recovery: Recovery) -> tuple[str, str]:
        """Return names of the stream and of the namespace of one act that are not used elsewhere."""
        stream = f"drill-{run_id}-{recovery.name}"
        return stream, f"{stream}-reapers"

    async def begin(self, stage: Stage) -> None:
        """Look at the servers before the act begins."""

    def plays(self, tools: Toolbox) -> Mapping[str, Play]:
        """Return a function for each kind of fault."""
        workers = WorkerFaults(tools)
        leaders = LeaderFaults(tools, workers)
        return {
            FaultKind.KILL_WORKER: workers.kill_worker,
            FaultKind.PAUSE_WORKER: workers.pause_worker,
            FaultKind.POISON: workers.poison,
            FaultKind.LONG_JOBS: workers.long_jobs,
            FaultKind.KILL_LEADER: leaders.kill_leader,
            FaultKind.PAUSE_LEADER: leaders.pause_leader,
            FaultKind.KILL_REAPERS: leaders.kill_reapers,
            FaultKind.PAUSE_REDIS: partial(pause_redis, tools),
        }

    async def complete(self, evidence: Evidence, stage: Stage) -> Evidence:
        """Return the evidence with what only the kit knows."""
        del stage
        return evidence

    def objections(self, evidence: Evidence, ledger: Ledger, stage: Stage) -> list[str]:
        """Return a sentence for each thing that is not as promised."""
        del evidence
        return objections(ledger, [fault.kind for fault in stage.settings.faults_for(stage.recovery)])
