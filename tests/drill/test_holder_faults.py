"""The holder is stopped between deciding and writing. The drill knows this process, and continues it at last."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reaper import failpoints
from reaper.drill import holder_faults
from reaper.drill.faults import Fault, parse_fault
from reaper.drill.holder_faults import FAILPOINT, HolderFaults
from reaper.drill.records import ProcessRun, Role
from reaper.drill.toolbox import Toolbox

pytestmark = pytest.mark.anyio

HOLDER = ProcessRun("r1-1", Role.REAPER, 4711, 0.0)


class Reapers:
    """One replica, which is stopped from the moment in which it claims the failpoint."""

    def __init__(self) -> None:
        self.resumed: list[str] = []

    def alive(self, _role: Role) -> list[ProcessRun]:
        return [HOLDER]

    def is_paused(self, _run: ProcessRun) -> bool:
        return True

    def resume(self, run: ProcessRun) -> None:
        self.resumed.append(run.name)


@pytest.fixture
def reapers() -> Reapers:
    return Reapers()


@pytest.fixture
def faults(tmp_path: Path, reapers: Reapers, monkeypatch: pytest.MonkeyPatch) -> HolderFaults:
    async def overdue(_self: object) -> bool:
        return True

    async def kills_one(_fault: Fault, _why: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(idle_ms=2_000)]

    monkeypatch.setattr(HolderFaults, "_anything_overdue", overdue)
    nothing = cast("Any", None)
    stage = cast("Any", SimpleNamespace(failpoints=tmp_path, settings=SimpleNamespace(visibility_timeout=nothing)))
    monkeypatch.setattr(Toolbox, "visibility_s", 2.0)
    tools = Toolbox(stage, cast("Any", reapers), nothing, nothing)
    return HolderFaults(tools, cast("Any", SimpleNamespace(kill_busy_workers=kills_one)))


def comes_by(folder: Path) -> None:
    """Claim the failpoint as the holder does; it stops at once."""
    if failpoints.is_armed(folder, FAILPOINT):
        (folder / FAILPOINT).rename(folder / f"{FAILPOINT}.hit.{HOLDER.pid}")


async def test_whoever_comes_by_while_the_drill_looks_is_found_at_the_next_look(
    faults: HolderFaults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failpoints.arm(tmp_path, FAILPOINT, "stop")
    is_armed, claimed_by = failpoints.is_armed, failpoints.claimed_by

    def and_then(look: Callable[[Path, str], Any]) -> Callable[[Path, str], Any]:
        def looks(folder: Path, name: str) -> Any:
            found = look(folder, name)
            if is_armed(folder, name):
                (folder / FAILPOINT).rename(folder / f"{FAILPOINT}.hit.{HOLDER.pid}")
            return found

        return looks

    monkeypatch.setattr(failpoints, "is_armed", and_then(is_armed))
    monkeypatch.setattr(failpoints, "claimed_by", and_then(claimed_by))
    assert await faults._catch_holder() is None
    assert await faults._catch_holder() == HOLDER


async def test_whoever_comes_by_when_it_is_given_up_goes_on(
    faults: HolderFaults, reapers: Reapers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder_faults, "PATIENCE_S", 0)
    disarm = failpoints.disarm

    def too_late(folder: Path, name: str) -> None:
        comes_by(folder)
        disarm(folder, name)

    monkeypatch.setattr(failpoints, "disarm", too_late)
    assert await faults.pause_holder(parse_fault("pause-holder@1")) == "no holder was about to recover a job"
    assert reapers.resumed == [HOLDER.name]
