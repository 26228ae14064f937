"""Processes of several versions on the same data: what is newer than they know they leave alone, with a sentence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.faults.reapers import Case, leading, quick_settings
from tests.support.dump import dump
from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys
from workers.protocol.messages import text

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

KEYS = group_keys("orders", "billing")
NEWER = "data_version", "2"
"""The field of the agreement, as a later version will write it."""
SENTENCE = "error: the data of group orders/billing is of version 2, and this process knows those up to 1: upgrade it."


# --- data that is newer


async def test_a_worker_does_not_begin_on_newer_data(server: RedisServer, client: Redis, processes: Processes) -> None:
    await client.xgroup_create("orders", "billing", "0", mkstream=True)
    await client.hset(KEYS.agreement, *NEWER)
    before = await dump(client)
    worker = processes.worker("tests.workers.program:worker", "--redis-url", server.url)
    assert await worker.wait() == 2
    assert worker.output.strip().endswith(SENTENCE)
    assert await dump(client) == before


@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
async def test_a_worker_that_runs_ends_when_the_data_has_become_newer(
    server: RedisServer, client: Redis, processes: Processes, recovery: str
) -> None:
    flags = ("--redis-url", server.url, "--recovery", recovery)
    worker = processes.worker("tests.workers.program:worker", *flags)
    await worker.prints("works on orders/billing")
    await client.hset(KEYS.agreement, *NEWER)
    await client.client_kill_filter(_type="normal", skipme=True)  # whoever lost contact reads the group settings again
    assert await worker.wait() == 2
    assert SENTENCE in worker.output


async def test_a_leader_refuses_a_group_with_newer_data_and_serves_it_once_that_has_gone(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    case = await Case.prepared(server, client)
    (job,) = await case.enqueue(1)
    await case.stall(*await case.read())
    await client.hset(KEYS.agreement, *NEWER)
    agreed = (await dump(client))[KEYS.agreement]
    async with leading(quick_settings(server), "error") as leader:
        report = await case.wait_for_report(lambda report: bool(report.refusal), "the leader refuses")
        await wait_until(leader.errors, "the refusal is reported")
        assert report.refusal == "newer_data"
        assert ((await dump(client))[KEYS.agreement], await case.pending()) == (agreed, [(job, "w1", 1)])
        assert any("version 2, which this replica does not know: upgrade it" in one.message for one in caplog.records)
        await client.hdel(KEYS.agreement, NEWER[0])
        await wait_until(lambda: _was_recovered(case, job), "the leader recovers the job")


async def _was_recovered(case: Case, job: str) -> bool:
    return job in await case.recovered()


# --- an earlier commit beside this one

EARLIER = "043ec02862e2"
"""The last commit before the journal had entries of many jobs."""
PROGRAM = """\
import os
import signal

import workers
from workers import Job, Worker

print(f"workers of {workers.__file__}", flush=True)
worker = Worker("orders", "billing")


@worker.handler
async def handle(job: Job) -> None:
    if b"kill" in job.fields and job.deliveries == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"done {job.id} {job.deliveries}", flush=True)
"""
VISIBILITY = ("--visibility-timeout", "1")


class Version:
    """One version of the project: starts its processes."""

    def __init__(self, folder: Path, program: Path, processes: Processes, server: RedisServer) -> None:
        self._folder, self._processes, self._url = folder, processes, server.url
        self._env = {"PYTHONPATH": os.pathsep.join((str(folder), str(program)))}

    def _start(self, *words: str) -> Running:
        there = ("sh", "-c", 'cd "$0" && exec "$@"', str(self._folder), sys.executable, "-m")
        return self._processes.start(
            *there, *words, "--redis-url", self._url, *VISIBILITY, env=self._env, name=words[0]
        )

    async def reaper(self) -> Running:
        """Start a replica and wait until it leads."""
        started = self._start("reaper", "run", "--groups", "orders/billing", "--lease-ttl", "2")
        await started.prints("leadership acquired")
        return started

    async def worker(self) -> Running:
        """Start a worker and wait until it works."""
        started = self._start("workers", "run", "earlier_program:worker")
        await started.prints(f"^workers of {self._folder}/")
        await started.prints("works on orders/billing")
        return started


@pytest.fixture
def versions(tmp_path: Path, processes: Processes, server: RedisServer) -> dict[str, Version]:
    """This version, and an earlier one from the project's history; skips where that is not at hand."""
    git = shutil.which("git")
    if (
        not git
        or subprocess.run([git, "cat-file", "-e", EARLIER], cwd=ROOT, capture_output=True, check=False).returncode
    ):
        pytest.skip(f"the project's history, with commit {EARLIER}, is not here")
    earlier, program = tmp_path / "earlier", tmp_path / "program"
    for folder in (earlier, program):
        folder.mkdir()
    archive = subprocess.run([git, "archive", EARLIER, "reaper", "workers"], cwd=ROOT, capture_output=True, check=True)
    subprocess.run([shutil.which("tar") or "tar", "-x", "-C", str(earlier)], input=archive.stdout, check=True)
    (program / "earlier_program.py").write_text(PROGRAM, encoding="utf-8")
    return {
        "earlier": Version(earlier, program, processes, server),
        "this": Version(ROOT, program, processes, server),
    }


both_ways = pytest.mark.parametrize(("first", "second"), [("earlier", "this"), ("this", "earlier")])


@pytest.mark.matrix
@both_ways
async def test_a_reaper_and_workers_of_two_versions_work_together(
    client: Redis, versions: dict[str, Version], first: str, second: str
) -> None:
    await versions[first].reaper()
    worker = await versions[second].worker()
    easy = text(await client.xadd("orders", {"n": "1"}))
    await worker.prints(f"done {easy} 1$")
    deadly = text(await client.xadd("orders", {"kill": "1"}))
    assert await worker.wait() < 0
    await (await versions[second].worker()).prints(f"done {deadly} 2$")


@pytest.mark.matrix
@both_ways
async def test_what_one_version_left_the_other_one_does(
    client: Redis, versions: dict[str, Version], first: str, second: str
) -> None:
    reaper, worker = await versions[first].reaper(), await versions[first].worker()
    deadly = text(await client.xadd("orders", {"kill": "1"}))
    assert await worker.wait() < 0
    reaper.terminate()
    assert await reaper.wait() == 0, reaper.output
    waiting = text(await client.xadd("orders", {"n": "1"}))
    await versions[second].reaper()
    worker = await versions[second].worker()
    for job, delivery in ((deadly, 2), (waiting, 1)):
        await worker.prints(f"done {job} {delivery}$")
