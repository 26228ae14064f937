"""A worker that is hit is stopped first: between a look and the blow it could begin a job on its last delivery."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reaper.drill import queries, worker_faults
from reaper.drill.faults import parse_fault
from reaper.drill.records import ProcessRun, Role
from reaper.drill.settings import DrillSettings
from reaper.drill.toolbox import Toolbox
from reaper.drill.worker_faults import WorkerFaults

pytestmark = pytest.mark.anyio

WORKERS = [ProcessRun(name, Role.WORKER, pid, 0.0) for pid, name in enumerate(("w1-1", "w2-1"), start=4711)]
BUSIEST, ALL = parse_fault("kill-worker@1"), parse_fault("kill-worker:all@1")
HITS: dict[str, Callable[[WorkerFaults], Any]] = {
    "kill": lambda faults: faults.kill_if_it_may_crash(WORKERS[0]),
    "kill the busiest": lambda faults: faults._strike(BUSIEST, 1),
    "pause": lambda faults: faults._freeze(),
}


class Workers:
    """Two workers; each begins a job on its last delivery with the look at it, unless it is stopped by then."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        self.killed: list[str] = []
        self.looks_last: set[str] = set()
        self.begins_when_looked_at = True
        self.ends_when_looked_at = False

    def alive(self, *_roles: Role) -> list[ProcessRun]:
        return WORKERS

    def is_paused(self, run: ProcessRun) -> bool:
        return run.name in self.stopped

    def pause(self, run: ProcessRun) -> None:
        self.stopped.add(run.name)

    def resume(self, run: ProcessRun) -> None:
        self.stopped.discard(run.name)

    def kill(self, run: ProcessRun) -> bool:
        self.killed.append(run.name)
        return True

    async def held(self, _stage: object, names: Sequence[str]) -> dict[str, list[str]]:
        if self.ends_when_looked_at and self.stopped:
            return {name: [] for name in names}
        rows = {name: [name] if name in self.looks_last else ["another job"] for name in names}
        if self.begins_when_looked_at:
            self.looks_last |= {name for name in names if name not in self.stopped}
        return rows

    async def is_last(self, _stage: object, rows: Sequence[str]) -> bool:
        return any(row in self.looks_last for row in rows)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    workers = Workers()
    monkeypatch.setattr(queries, "pending_by_process", workers.held)
    monkeypatch.setattr(queries, "must_not_crash", workers.is_last)
    monkeypatch.setattr(worker_faults, "STAND_STILL_S", 0)
    return workers


@pytest.fixture
def faults(workers: Workers) -> WorkerFaults:
    nothing = cast("Any", None)
    return WorkerFaults(Toolbox(cast("Any", SimpleNamespace()), cast("Any", workers), nothing, nothing))


@pytest.mark.parametrize("hit", [HITS["kill the busiest"], HITS["pause"]], ids=["kill the busiest", "pause"])
async def test_who_begins_a_last_delivery_while_it_is_chosen_is_spared_and_goes_on(
    faults: WorkerFaults, workers: Workers, hit: Callable[[WorkerFaults], Any]
) -> None:
    assert await hit(faults) is None
    assert (workers.killed, workers.stopped) == ([], set())


@pytest.mark.parametrize("hit", HITS.values(), ids=HITS)
async def test_others_are_hit(faults: WorkerFaults, workers: Workers, hit: Callable[[WorkerFaults], Any]) -> None:
    workers.begins_when_looked_at = False
    assert await hit(faults)
    assert workers.stopped == {"w1-1"}


@pytest.mark.parametrize("hit", HITS.values(), ids=HITS)
async def test_who_has_ended_its_jobs_meanwhile_is_spared(
    faults: WorkerFaults, workers: Workers, hit: Callable[[WorkerFaults], Any]
) -> None:
    workers.begins_when_looked_at, workers.ends_when_looked_at = False, True
    assert not await hit(faults)
    assert (workers.killed, workers.stopped) == ([], set())


async def test_of_several_workers_those_are_spared_that_run_a_last_delivery(
    faults: WorkerFaults, workers: Workers
) -> None:
    faults.tools.stage = cast("Any", SimpleNamespace(settings=DrillSettings(workers=2)))
    workers.begins_when_looked_at, workers.looks_last = False, {"w1-1"}
    assert await faults._strike(ALL, 1)
    assert (workers.killed, workers.stopped) == (["w2-1"], {"w2-1"})


async def test_nobody_stays_stopped_where_the_look_fails(
    faults: WorkerFaults, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> bool:
        raise ConnectionError

    monkeypatch.setattr(queries, "must_not_crash", fails)
    with pytest.raises(ConnectionError):
        await faults.kill_if_it_may_crash(WORKERS[0])
    assert (workers.killed, workers.stopped) == ([], set())
