"""The lines that people see of an act."""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from reaper.drill.live import plain_screen
from reaper.drill.producer import Producer
from reaper.drill.queries import View
from reaper.drill.records import Enqueued, ProcessRun, Role
from reaper.drill.recoveries import RECOVERIES
from reaper.drill.redis_server import Server
from reaper.drill.settings import DrillSettings
from reaper.drill.stage import set_stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.toolbox import Toolbox
from reaper.drill.trace import PlannedJob
from reaper.drill.witness import Witness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SERVER = Server("redis://127.0.0.1:1/0", "7", "no server")


@pytest.fixture
def tools(tmp_path: Path) -> Toolbox:
    """Five of eight jobs are in: one is settled, one dead, one ready, two in flight."""
    stage = set_stage(SERVER, DrillSettings(), RECOVERIES["reaper"], tmp_path, ("drill", "reapers"))
    jobs = [PlannedJob(n, timedelta(0), timedelta(0)) for n in range(1, 9)]
    producer, witness = Producer(stage, jobs), Witness(stage)
    producer.enqueued += [Enqueued(n, f"{n}-0", 0.0) for n in range(1, 6)]
    witness.view = View(ready=1, in_flight=2, dead=1, holder="r2-1-77.nonce")
    witness.counts.update({"recovered": 7, "rejected": 2})
    tools = Toolbox(stage, Supervisor(stage.folder), producer, witness)
    tools.begin()
    return tools


async def test_plain_lines_tell_the_numbers_and_what_happens(
    tools: Toolbox, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.announce("kill -9 of worker w1-1 with 3 jobs in flight")
    printed = ""

    def told() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "settled" in printed

    async with anyio.create_task_group() as group:
        group.start_soon(plain_screen, tools)
        await wait_until(told, "the first line is printed")
        group.cancel_scope.cancel()
    assert "* kill -9 of worker w1-1 with 3 jobs in flight" in printed
    assert "settled 1/5 ready 1 in flight 2 recovered 7 dead 1 holder none" in printed


async def test_a_process_that_dies_by_itself_is_told_and_one_that_was_killed_is_not_told_twice(tools: Toolbox) -> None:
    def ended(*, killed_at: float | None = None, stopped: bool = False) -> ProcessRun:
        return ProcessRun("w1-1", Role.WORKER, 7, 0.0, 1.0, -9, killed_at, stopped)

    for run in (ended(), ended(killed_at=1.0), ended(stopped=True)):
        tools.supervisor.on_end(run)
    assert [sentence for _, sentence in tools.news] == ["worker w1-1 died (exit code -9); it is restarted"]
