"""The recipe of plain readers that recover by ``XREADGROUP … CLAIM``, in docs/recipes.md, on servers that know it."""

import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from tests.faults import scene
from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import WITH_CLAIM
from tests.support.waiting import wait_until
from workers.protocol.calls.moves import SETTLE

EXAMPLE = ROOT / "docs" / "examples" / "claim_worker.py"
MAX_DELIVERIES = 3


def test_the_program_is_valid_and_the_page_names_it() -> None:
    compile(EXAMPLE.read_text(), EXAMPLE.name, "exec")
    assert f"docs/examples/{EXAMPLE.name}" in (ROOT / "docs" / "recipes.md").read_text()


@pytest.mark.anyio
@pytest.mark.processes
@pytest.mark.contract
@pytest.mark.only_on(*WITH_CLAIM)
async def test_plain_readers_recover_each_other_and_give_up_a_poison_job_at_the_limit(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path
) -> None:
    script = tmp_path / "settle.lua"
    script.write_text(SETTLE.source)
    env = {"REDIS_URL": server.url, "SETTLE_LUA": str(script), "VISIBILITY_MS": "200"}

    def start(name: str) -> Running:
        return processes.start(sys.executable, str(EXAMPLE), scene.STREAM, scene.GROUP, name, env=env, name=name)

    await client.xgroup_create(scene.STREAM, scene.GROUP, "0", mkstream=True)
    await scene.enqueue(client, 2)
    [poison] = await scene.enqueue(client, 1, poison="")
    await scene.enqueue(client, 2)
    workers = []
    for n in range(MAX_DELIVERIES):
        workers.append(start(f"w{n}"))
        await workers[-1].wait()
    workers.append(start("survivor"))
    await scene.nothing_left(client)
    await wait_until(lambda: client.xlen(scene.KEYS.dead), "the poison job is a dead letter")
    done = [line for worker in workers for line in worker.output.splitlines() if line.startswith("done")]
    assert sorted(done) == ["done 0", "done 0", "done 1", "done 1"]
    [letter] = (await read_state(client, scene.KEYS)).dead
    assert (letter.job, letter.reason) == (poison, "max_deliveries")
    assert workers[-1].running
