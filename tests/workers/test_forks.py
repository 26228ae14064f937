"""A process that a handler forks is no second worker: it ends where it would come back to the worker."""

import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.support.loops import loop_environment, on_a_loop
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.workers.forking_program import CODES, ENDING
from tests.workers.scene import add

FORKING = "tests.workers.forking_program"


@pytest.mark.parametrize(("target", "loop"), on_a_loop([f"{FORKING}:worker", f"{FORKING}:in_thread"]))
@pytest.mark.anyio
@pytest.mark.processes
async def test_children_of_a_job_end_without_a_verdict_and_do_not_stop_the_worker(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path, target: str, loop: str
) -> None:
    worker = processes.worker(target, "--redis-url", server.url, env=loop_environment(loop, tmp_path))
    await worker.prints("worker started")
    await add(client, {"n": 1})
    for end in ENDING:
        await worker.prints(f"{end.__name__}: {-signal.SIGTERM}$")
    for how, code in CODES.items():
        await worker.prints(f"^{how}: {code}$")
    await add(client, {"n": 2})
    *_, last = CODES
    await worker.prints(f"(?s)(^{last}.*){{2}}")

    assert "worker is stopping" not in worker.output
    assert "ValueError: in the child" in worker.output
    assert worker.output.count(f"{last}: ") == 2, "no child went on"
    worker.terminate()
    assert await worker.wait() == 0
    assert " read=2 acked=2" in worker.output
