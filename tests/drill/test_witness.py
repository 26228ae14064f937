"""Executions that are known while they run."""

from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper.drill.recoveries import RECOVERIES
from reaper.drill.redis_server import Server
from reaper.drill.settings import DrillSettings
from reaper.drill.stage import set_stage
from reaper.drill.witness import Witness
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def witness(server: RedisServer, client: Redis, tmp_path: Path) -> Witness:
    at = Server(server.url, "7", "a server of the tests")
    own = set_stage(at, DrillSettings(), RECOVERIES["none"], tmp_path, ("drill", "reapers"))
    stage = replace(own, client=client, namespace_client=client)
    await client.xgroup_create(stage.keys.stream, stage.keys.group, id="0", mkstream=True)
    return Witness(stage)


async def _writes(witness: Witness, *steps: str, pid: int = 7) -> int:
    """Let process ``pid`` write lines, and return what it has in hand then."""
    with (witness.stage.folder / f"w{pid}-1.out").open("a") as ledger:
        ledger.writelines(f"{step} 1 1-0 {pid} 1.0{' digest' if step == 'start' else ''}\n" for step in steps)
    await witness.look()
    return witness.in_hand(pid)


async def test_a_bare_loop_has_in_hand_what_it_has_started(witness: Witness) -> None:
    assert await _writes(witness, "start", pid=8) == 1
    assert (await _writes(witness, "start", "done", pid=9), witness.in_hand(8)) == (0, 1)
