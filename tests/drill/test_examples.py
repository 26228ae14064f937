"""The foreign workers of the documentation: they know nothing of us, and are served all the same."""

import hashlib
import shutil
import sys

import pytest
from redis.asyncio import Redis

from reaper.drill.cast import BARE_WORKER
from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.messages import text

pytestmark = pytest.mark.anyio

EXAMPLES = ROOT / "docs" / "examples"
PAYLOAD = b"\x00\xff\r\n$5\r\n\xc3( \xf0\x9f\x90\x8c" * 5_000


def _start(language: str, processes: Processes, server: RedisServer) -> Running:
    if language == "python":
        example = str(EXAMPLES / "bare_worker.py")
        return processes.start(sys.executable, example, "jobs", "workers", "p1", env={"REDIS_URL": server.url})
    node = shutil.which("node")
    assert node, "this test needs Node.js on the PATH"
    return processes.start(node, str(EXAMPLES / "bare_worker.js"), str(server.port), "jobs", "workers", "j1")


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_a_foreign_worker_serves_entries_with_our_fields_in_them(
    language: str, processes: Processes, server: RedisServer, client: Redis
) -> None:
    await client.xgroup_create("jobs", "workers", id="0", mkstream=True)
    job = ("duration_ms", 1, "payload", PAYLOAD)
    ours = ("reaper.job", "1-0", "reaper.deliveries", 1, "reaper.consumers", "w1")
    ids = [
        text(await client.execute_command("XADD", "jobs", "*", "n", 1, *job)),
        text(await client.execute_command("XADD", "jobs", "*", "n", 2, *job, *ours)),
    ]
    worker = _start(language, processes, server)

    async def settled() -> bool:
        pending = await client.execute_command("XPENDING", "jobs", "workers")
        return pending[0] == 0 and f"done 2 {ids[1]}" in worker.output

    await wait_until(settled, "both jobs are settled")
    steps = [line.split() for line in worker.output.splitlines()]
    assert [(step[0], step[1], step[2]) for step in steps] == [
        ("start", "1", ids[0]), ("done", "1", ids[0]), ("start", "2", ids[1]), ("done", "2", ids[1]),
    ]  # fmt: skip
    assert {step[5] for step in steps if step[0] == "start"} == {hashlib.sha256(PAYLOAD).hexdigest()}


def test_the_bare_worker_of_the_documentation_is_the_one_of_the_drill_and_has_at_most_30_lines() -> None:
    example = EXAMPLES / "bare_worker.py"
    assert example.is_symlink()
    assert not example.readlink().is_absolute()
    assert example.resolve() == BARE_WORKER.resolve()
    assert len(example.read_text().splitlines()) <= 30
