"""``/livez``, ``/readyz``, ``/status`` and ``/metrics`` of replicas and workers."""

import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from redis.asyncio import Redis

from reaper.operations.acl import Role, rules_of
from reaper.service import Reaper
from reaper.web.app import Overview
from reaper.web.serve import serving_health as serving_replica
from tests.conftest import StartServer
from tests.faults.scene import KEYS, NAMESPACE, create_group, enqueue, reaper_settings, worker_settings
from tests.operator.conftest import Command
from tests.support.http import request
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.web.conftest import Served
from workers import Job, Worker
from workers.cli import serving_health as serving_worker
from workers.protocol.connection import commands_client, own_connection
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import RecoveryMode
from workers.runtime.health_server import MOST_CONNECTIONS

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def _served_worker(url: str, handler: Any, **changes: Any) -> AsyncIterator[tuple[Worker, int]]:
    worker = Worker(settings=worker_settings(url, health_port=0, **changes))
    worker.handler(handler)
    async with anyio.create_task_group() as tasks, serving_worker(worker) as port:
        assert port
        await tasks.start(worker.run)
        yield worker, port
        worker.stop(now=True)


async def _idle(_job: Job) -> None:
    """Nothing to do."""


# --- replicas


async def test_a_replica_that_holds_a_group_is_alive_and_ready(served: Served) -> None:
    for path in ("/livez", "/readyz"):
        reply = await served.get(path)
        assert (reply.code, reply.data) == (200, {"status": "ok", "reasons": []})


async def test_status_is_what_the_command_prints(served: Served, reaper_command: Command) -> None:
    printed = (await reaper_command("status", "-o", "json", "--groups", "orders/billing")).data
    answered = (await served.get("/status")).data
    assert answered.keys() == printed.keys()
    assert [one["id"] for one in answered["replicas"]] == [served.reaper.replica_id]


@pytest.fixture
def reaper_command(server: RedisServer) -> Command:
    from functools import partial

    from tests.operator.conftest import run_command

    return partial(run_command, server.url)


async def test_a_replica_that_holds_no_group_is_ready_too(served: Served, server: RedisServer) -> None:
    async with Reaper(reaper_settings(server.url, health_port=0)) as other, serving_replica(other) as port:
        assert port

        async def ready() -> bool:
            return (await request(port, "/readyz")).code == 200

        await wait_until(ready, "the other replica is ready")
        assert other.held + served.reaper.held <= 1


async def test_without_redis_it_is_not_ready_and_yet_alive(start_server: StartServer) -> None:
    server = start_server()
    client = commands_client(server.url)
    await create_group(client)
    await client.aclose()
    settings = reaper_settings(server.url, health_port=0, lease_ttl=1)
    async with Reaper(settings) as replica, serving_replica(replica) as port:
        assert port
        await wait_until(lambda: replica.has_worked, "it has taken part")
        server.kill()
        ready, status, live = [await request(port, path) for path in ("/readyz", "/status", "/livez")]
        assert (ready.code, ready.data["reasons"][0].startswith("Redis does not answer")) == (503, True)
        assert (status.code, status.data["status"]) == (503, "unreachable")
        assert live.code == 200


# --- workers


async def test_a_worker_is_alive_and_ready(server: RedisServer, client: Redis) -> None:
    await create_group(client)
    async with _served_worker(server.url, _idle) as (_, port):

        async def ready() -> bool:
            return (await request(port, "/readyz")).code == 200

        await wait_until(ready, "it has read")
        assert (await request(port, "/livez")).code == 200


async def test_a_worker_that_stops_is_not_ready(server: RedisServer, client: Redis) -> None:
    await create_group(client)
    release = anyio.Event()

    async def hold(_job: Job) -> None:
        await release.wait()

    async with _served_worker(server.url, hold) as (worker, port):
        await enqueue(client, 1)
        await wait_until(lambda: worker.counts.read == 1, "the job was read")
        worker.stop()
        reply = await request(port, "/readyz")
        assert (reply.code, reply.data["reasons"]) == (503, ["the worker is stopping"])
        release.set()


async def test_a_handler_that_blocks_the_loop_for_too_long_is_taken_for_hung(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.health_server.LIVENESS_TIMEOUT_S", 1.0)
    await create_group(client)
    replies: list[int] = []

    async def block(_job: Job) -> None:
        deadline = monotonic() + 30
        while not replies and monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251 - that is what is tested

    async with _served_worker(server.url, block) as (_, port):

        def watch() -> None:
            reply = anyio.run(request, port, "/livez")
            while reply.code == 200:
                reply = anyio.run(request, port, "/livez")
            replies.append(reply.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, watch)
            await enqueue(client, 1)
    assert replies == [503]


async def _port_of(process: Running) -> int:
    return int((await process.prints(r"health endpoint started: url=http://127\.0\.0\.1:(\d+)/"))[1])


async def test_a_worker_serves_it_as_a_process(server: RedisServer, client: Redis, processes: Processes) -> None:
    await create_group(client)
    flags = ("--redis-url", server.url, "--stream", "orders", "--group", "billing", "--health-port", "0")
    worker = processes.worker("tests.faults.program:worker", *flags)
    port = await _port_of(worker)
    await worker.prints("worker started: .* group=orders/billing")
    assert (await request(port, "/livez")).code == 200

    async def ready() -> bool:
        return (await request(port, "/readyz")).code == 200

    await wait_until(ready, "it has read")
    for path in ("/", "/status"):
        assert (await request(port, path)).code == 404
    worker.terminate()
    assert await worker.wait() == 0


# --- both


@asynccontextmanager
async def _silent(port: int, number: int, said: bytes = b"") -> AsyncIterator[list[SocketStream]]:
    """Open connections that say no more than this."""
    opened: list[SocketStream] = []
    try:
        for _ in range(number):
            opened.append(await anyio.connect_tcp("127.0.0.1", port))
            await opened[-1].send(said) if said else None
        yield opened
    finally:
        for stream in opened:
            await stream.aclose()


HALF = b"POST /api/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"


@pytest.mark.parametrize("number", [64, 2 * MOST_CONNECTIONS])
@pytest.mark.parametrize("said", [b"GET /livez HT", HALF + b"\r\n{"])
async def test_silent_connections_are_in_no_probes_way(served: Served, said: bytes, number: int) -> None:
    async with _silent(served.port, number, said):
        for path in ("/livez", "/readyz", "/status", "/"):
            assert (await served.get(path)).code == 200


async def test_a_slow_client_is_served_while_many_others_come_and_go(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.health_server.MOST_CONNECTIONS", 3)
    async with _silent(served.port, 1, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n") as [slow]:
        for _ in range(12):
            assert (await served.get("/livez")).code == 200
        await slow.send(b"\r\n")
        assert (await slow.receive()).startswith(b"HTTP/1.1 200")


async def test_pages_that_wait_for_redis_keep_no_probe_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection that pages have is taken; readiness has one of its own."""
    release, held = threading.Event(), threading.Semaphore(0)

    async def hold(overview: Overview) -> dict[str, str]:
        async with own_connection(overview._client):
            held.release()
            await wait_until(release.is_set, "it may end")
        return {}

    monkeypatch.setattr(Overview, "look", hold)
    async with _silent(served.port, 4, b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        for _ in range(4):
            await anyio.to_thread.run_sync(held.acquire)
        ready = await served.get("/readyz")
        release.set()
    assert ready.code == 200


async def test_metrics_need_the_extra_telemetry(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = await served.get("/metrics")
    assert (reply.code, reply.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert (await served.get("/metrics")).code == 404


async def test_a_name_that_only_points_here_learns_nothing(served: Served) -> None:
    assert (await served.get("/status", Host="evil.example")).code == 400
    assert (await served.get("/status", Host="localhost:1")).code == 200


async def test_it_can_be_served_on_the_other_loopback_address(server: RedisServer, client: Redis) -> None:
    await create_group(client)
    settings = reaper_settings(server.url, health_port=0, health_host="::1")
    async with Reaper(settings) as replica, serving_replica(replica) as port:
        assert port
        assert (await request(port, "/livez", host="::1")).code == 200


async def test_a_port_in_use_is_a_sentence(served: Served, server: RedisServer) -> None:
    replica = Reaper(reaper_settings(server.url, health_port=served.port))
    with pytest.raises(ConfigurationError, match=rf"cannot listen on health_port {served.port} of 127\.0\.0\.1"):
        async with serving_replica(replica):
            pass


async def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    replica = Reaper(reaper_settings("redis://127.0.0.1:1/0", health_port=0))
    with pytest.raises(ConfigurationError, match=r"pip install '.\[web\]'"):
        async with serving_replica(replica):
            pass


async def test_without_a_port_nothing_is_served_or_imported(processes: Processes) -> None:
    program = processes.python(
        "-c",
        "import sys, reaper.process, workers.cli; print([m for m in ('starlette', 'uvicorn') if m in sys.modules])",
    )
    assert (await program.wait(), program.output) == (0, "[]\n")


# --- denied


async def _let_in(client: Redis, server: RedisServer, role: Role, *changes: str) -> str:
    words = rules_of(role, RecoveryMode.REAPER, [KEYS], [NAMESPACE]).words
    await client.execute_command("ACL", "SETUSER", "restricted", "reset", "on", ">p", *words, *changes)
    return f"redis://restricted:p@127.0.0.1:{server.port}/0"


@pytest.fixture
async def _without_user(client: Redis) -> AsyncIterator[None]:
    yield
    await client.execute_command("ACL", "DELUSER", "restricted")


@pytest.mark.usefixtures("_without_user")
async def test_a_worker_is_ready_only_while_it_is_denied_nothing(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.loop.reading.ADOPTION_PAUSE_S", 0.05)
    monkeypatch.setattr("workers.loop.membership.REFRESH_S", 0.05)
    await create_group(client)
    url = await _let_in(client, server, Role.WORKER, "-xreadgroup")
    async with _served_worker(url, _idle) as (worker, port):

        async def readiness(code: int) -> bool:
            return (await request(port, "/readyz")).code == code

        await wait_until(lambda: worker.process and worker.process.denials, "reading is denied")
        assert await readiness(503)
        assert (await request(port, "/readyz")).data["reasons"][0].startswith("Redis denies a call: reading: ")
        await client.execute_command("ACL", "SETUSER", "restricted", "+xreadgroup")
        await wait_until(lambda: readiness(200), "it is ready once it has read")
        await client.execute_command("ACL", "SETUSER", "restricted", "-evalsha")
        await wait_until(lambda: readiness(503), "it is not ready any more")
        await client.execute_command("ACL", "SETUSER", "restricted", "+evalsha")
        await wait_until(lambda: readiness(200), "it is ready again")


@pytest.mark.usefixtures("_without_user")
@pytest.mark.parametrize("lost", [("-evalsha", "-eval"), ("-xpending",)])
async def test_a_replica_is_ready_only_while_it_is_denied_nothing(
    server: RedisServer, client: Redis, lost: tuple[str, ...]
) -> None:
    await create_group(client)
    url = await _let_in(client, server, Role.REAPER, *lost)
    settings = reaper_settings(url, health_port=0, lease_ttl=1, heartbeat_interval=0.1)
    async with Reaper(settings) as replica, serving_replica(replica) as port:
        assert port

        async def readiness(code: int) -> bool:
            return (await request(port, "/readyz")).code == code

        await wait_until(lambda: replica.denials, "something is denied")
        assert await readiness(503)
        assert (await request(port, "/readyz")).data["reasons"][0].startswith("Redis denies a call: ")
        await client.execute_command("ACL", "SETUSER", "restricted", *(f"+{right[1:]}" for right in lost))
        await wait_until(lambda: readiness(200), "it is ready once it has taken part")
        await client.execute_command("ACL", "SETUSER", "restricted", *lost)
        await wait_until(lambda: readiness(503), "it is not ready any more")
