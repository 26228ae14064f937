"""The examples of docs/library.md, testing.md and producers.md are run as they stand there, outside of this project."""

import re
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.library.examples import write_files
from tests.support.http import request
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import consumers_of, dead_letters, pending_of
from workers.protocol.keys import MARKER_CONSUMER
from workers.testing import run_until_drained

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


def start_in(folder: Path, processes: Processes, *words: str, **env: str) -> Running:
    """Start this Python with ``words`` in ``folder``: it knows the installed package, not this folder."""
    code = "import os, runpy, sys; os.chdir(sys.argv[1]); sys.path[0] = sys.argv[1]; del sys.argv[:2]; "
    code += "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    return processes.start(sys.executable, "-c", code, str(folder), *words, env={"PYTHONPATH": "", **env})


async def serve(folder: Path, processes: Processes, server: RedisServer) -> tuple[Running, int]:
    """Serve the application of the page; return its process and its port."""
    write_files("library.md", folder)
    app = start_in(folder, processes, "uvicorn", "service:app", "--port", "0", REDIS_URL=server.url)
    port = (await app.prints(r"running on http://127\.0\.0\.1:(\d+)"))[1]
    return app, int(port)


async def test_the_web_application_enqueues_works_reports_what_it_gives_up_and_leaves(
    processes: Processes, server: RedisServer, client: Redis, tmp_path: Path
) -> None:
    app, port = await serve(tmp_path, processes, server)

    reply = await request(port, "/orders/17", method="POST")
    assert (reply.code, list(reply.data)) == (202, ["job"])
    await app.prints("^billed 17$")
    await client.xadd("orders", {"reaper.deliveries": "2", "no": "order"})
    await app.prints(r"^gave up \S+ max_deliveries$")
    assert len(await dead_letters(client)) == 1

    async def healthy() -> bool:
        return bool((await request(port, "/health")).data == {"groups": 1, "acked": 1})

    await wait_until(healthy, "it holds the group, and the job is acknowledged")
    app.terminate()
    assert await app.wait() in (0, -signal.SIGTERM)  # uvicorn raises the signal again at its end
    assert "Application shutdown complete" in app.output
    assert await pending_of(client) == []
    assert await consumers_of(client) == [MARKER_CONSUMER]
    assert await client.hgetall("{reaper}:replicas") == {}
    assert not await client.exists("{reaper}:lease")


async def test_without_redis_the_web_application_does_not_begin(processes: Processes, tmp_path: Path) -> None:
    write_files("library.md", tmp_path)
    url = "redis://127.0.0.1:1/0"
    app = start_in(tmp_path, processes, "uvicorn", "service:app", "--port", "0", REDIS_URL=url)
    assert await app.wait() == 3
    assert f"UnreachableError: cannot use Redis at '{url}'" in app.output


async def test_the_testing_page_is_a_project_whose_tests_pass(processes: Processes, tmp_path: Path) -> None:
    names = write_files("testing.md", tmp_path)
    assert names == ["shop.py", "test_bill.py", "conftest.py", "test_worker.py"]
    shell = {"REAPER_MAX_DELIVERIES": "1", "REAPER_REDIS_URL": "redis://127.0.0.1:1/0", "REAPER_TYPO": "1"}
    tests = start_in(tmp_path, processes, "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", **shell)
    assert await tests.wait() == 0
    assert re.search(r"^9 passed", tests.output, re.MULTILINE)


async def test_a_nightly_job_is_one_however_often_it_is_enqueued(
    processes: Processes, server: RedisServer, client: Redis, tmp_path: Path
) -> None:
    assert write_files("producers.md", tmp_path) == ["nightly.py", "steps.py"]
    said = []
    for _ in range(2):
        program = start_in(tmp_path, processes, "nightly", REDIS_URL=server.url)
        assert await program.wait() == 0
        said.append(program.output.strip())
    assert re.fullmatch(r"nightly-\d{4}-\d\d-\d\d", said[0])
    rows: Any = await client.xrange("reports")
    ids = [flat[-1].decode() for _, flat in rows]
    assert ids == list(dict.fromkeys(said))  # two of them, if midnight has come meanwhile


def test_a_second_step_is_enqueued_once_although_the_first_runs_twice(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_files("producers.md", tmp_path)
    monkeypatch.setenv("REDIS_URL", server.url)
    worker = runpy.run_path(str(tmp_path / "steps.py"))["worker"]
    for _ in range(2):  # as a job is there again whose first worker died after it had enqueued the second step
        server.command("XADD", "orders", "*", "step", "charge", "order", "17", "reaper.job", "o-17")
    drained = run_until_drained(worker, redis_url=server.url, concurrency=1)  # two threads' words would mix in print()
    assert drained.counts.acked == 3
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "charge 17", "charge 17", "ship 17"]
