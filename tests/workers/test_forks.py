"""A process that a handler forks is no second worker: it ends where it would come back to us."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.support.loops import loop_environment, on_a_loop
from tests.support.patience import PATIENCE_S, scaled
from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.forking_program import ENDING, LEAVING
from tests.workers.scene import add
from workers.protocol.wire import MOST_ANEW

PROGRAM = """
import os, sys, anyio
from tests.workers.scene import make_job
from workers.loop.around import invoker_inside
from workers.loop.execution import execute

def leave(how):
    if how == "raises":
        raise ValueError("in the child")
    if how == "exits":
        sys.exit(7)
    if how == "exits in words":
        sys.exit("no")

def fork(how):
    child = os.fork()
    if not child:
        print("forked", flush=True)
        return leave(how)
    print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

def plain(job):
    fork(job.fields[b"how"].decode())

async def asynchronous(job):
    fork(job.fields[b"how"].decode())

def around(job):
    try:
        yield
    finally:
        print("around", flush=True)

async def around_async(job):
    try:
        yield
    finally:
        print("around", flush=True)

async def main():
    arounds = [around, around_async] if sys.argv[2] == "inside" else []
    for how in sys.argv[3:]:
        invoke = invoker_inside(arounds, globals()[sys.argv[1]], 2)
        verdict = await execute(invoke, make_job(b"how", how.encode()))
        print(verdict.outcome.value, flush=True)

anyio.run(main)
"""
CODES = {"returns": 0, "raises": 1, "exits": 7, "exits in words": 1}
"""How a child leaves the handler, and the exit code that it ends with."""


@pytest.mark.parametrize("where", ["bare", "inside"])
@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_what_a_handler_forks_ends_without_a_verdict(kind: str, where: str) -> None:
    """One process runs a job for each way to leave. A child that went on would run the others, and be seen."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, where, *CODES],
        capture_output=True,
        text=True,
        timeout=scaled(PATIENCE_S),
        check=False,
    )
    around = ["around", "around"] if where == "inside" else []
    expected = [line for code in CODES.values() for line in ("forked", f"child: {code}", *around, "ack")]
    assert ended.stdout.splitlines() == expected
    assert ended.returncode == 0
    assert "ValueError: in the child" in ended.stderr


CONNECTING = """
import asyncio, os, signal, sys
import redis, uvloop
from redis.asyncio import Connection
from workers.protocol.address import Topology
from workers.protocol.wire import improved

url, loop, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])
known = redis.Redis.from_url(url)
children = []

class ForkedWhileItConnects(Connection):
    async def _connect(self):
        await super()._connect()
        if len(children) < forks:
            children.append(os.fork() or signal.pause())

async def main():
    address = redis.ConnectionPool.from_url(url).connection_kwargs
    connection = improved(ForkedWhileItConnects, Topology.SINGLE)(host=address["host"], port=address["port"])
    before = {row["id"] for row in known.client_list()}
    await connection.connect()
    await connection.send_command("CLIENT", "ID")
    number = str(await connection.read_response())
    print("forks:", len(children))
    await connection.disconnect()
    new = lambda: {row["id"] for row in known.client_list()} - before
    while new() - {number}:
        pass  # what was ended is closed
    while forks == 1 and new():
        pass
    print("open" if new() else "closed")

try:
    (uvloop.run if loop == "uvloop" else asyncio.run)(main())
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""

# ---- a worker whose jobs start processes

FORKING = "tests.workers.forking_program"
KINDS = pytest.mark.parametrize(("target", "loop"), on_a_loop([f"{FORKING}:worker", f"{FORKING}:in_thread"]))
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@KINDS
@pytest.mark.anyio
@pytest.mark.processes
async def test_a_job_that_terminates_its_children_does_not_stop_the_worker(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path, target: str, loop: str
) -> None:
    worker = processes.worker(target, "--redis-url", server.url, env=loop_environment(loop, tmp_path))
    await worker.prints("worker started")
    await add(client, {"n": 1})
    for end in ENDING:
        await worker.prints(f"{end.__name__}: {-signal.SIGTERM}$")
    await add(client, {"n": 2})
    await worker.prints(f"(?s)({ENDING[-1].__name__}.*){{2}}")

    assert "stops:" not in worker.output
    worker.terminate()
    assert await worker.wait() == 0
    assert " read=2 acked=2" in worker.output


@KINDS
@pytest.mark.anyio
@pytest.mark.processes
async def test_children_that_outlive_the_worker_keep_none_of_its_sockets(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path, target: str, loop: str
) -> None:
    ours = await clients_of(client)
    port = free_port()
    worker = processes.worker(
        target, "--redis-url", server.url, "--health-port", str(port), env=loop_environment(loop, tmp_path)
    )
    await worker.prints("worker started")
    with socket.create_connection(("127.0.0.1", port)) as probe:
        probe.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert probe.recv(100).startswith(b"HTTP/1.1 200")
        written = tmp_path / "children"
        await add(client, {"children": str(written)})
        children = await wait_until(lambda: written.read_text().split() if written.exists() else [], "it is done")
        assert await clients_of(client) - ours

        os.kill(worker.pid, signal.SIGKILL)

        await wait_until(lambda: is_closed(probe), "the connection of the probe is closed")
    await wait_until(lambda: has_no_other_clients(client, ours), "Redis has no connection of the worker's")
    socket.create_server(("127.0.0.1", port)).close()
    assert len(children) == len(LEAVING)
    assert all(map(is_alive, children))


@LOOPS
@pytest.mark.anyio
@pytest.mark.processes
async def test_a_child_that_comes_back_to_the_event_loop_of_its_parent_ends_there(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path, loop: str
) -> None:
    worker = processes.worker(f"{FORKING}:stray", "--redis-url", server.url, env=loop_environment(loop, tmp_path))
    await worker.prints("worker started")
    await add(client, {"n": 1})

    await worker.prints("the child ended with 0")
    worker.terminate()
    assert await worker.wait() == 0
    assert worker.output.count(" read=1 acked=1") == 1


@LOOPS
@pytest.mark.parametrize("forks", [1, MOST_ANEW + 1])
@pytest.mark.processes
def test_a_child_forked_while_a_connection_is_made_does_not_keep_it_open(
    server: RedisServer, loop: str, forks: int
) -> None:
    """The last connection of a program that forks all the time is kept, whatever its child has of it."""
    ended = subprocess.run(
        [sys.executable, "-c", CONNECTING, server.url, loop, str(forks)],
        capture_output=True,
        text=True,
        timeout=scaled(PATIENCE_S),
        check=False,
    )
    assert (ended.stdout, ended.stderr) == (
        f"forks: {forks}\nclosed\n" if forks == 1 else f"forks: {forks}\nopen\n",
        "",
    )


async def clients_of(client: Redis) -> set[str]:
    rows: list[dict[str, str]] = await client.client_list()
    return {row["id"] for row in rows}


async def has_no_other_clients(client: Redis, known: set[str]) -> bool:
    return await clients_of(client) <= known


def is_closed(probe: socket.socket) -> bool:
    probe.setblocking(False)
    try:
        return not probe.recv(10_000)
    except BlockingIOError:
        return False


def is_alive(pid: str) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
