"""A password that lies in a file is changed while everything runs; nobody is restarted."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from tests.conftest import StartServer
from tests.faults import scene
from tests.faults.scene import KEYS, create_group, enqueue, holds, running_reaper, running_worker, violations
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Producer, Worker, WorkerSettings
from workers.protocol.connection import blocking_client, commands_client, reader_client
from workers.runtime.notices import notices_client
from workers.runtime.settings import load_settings

pytestmark = pytest.mark.anyio

USER = "rotated"


class Rotated:
    """A user whose password lies in a file, and the address from it."""

    def __init__(self, server: RedisServer, admin: Redis, file: Path) -> None:
        self._server, self._admin, self._file = server, admin, file
        self.url = ""

    async def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the user, and read the address from the file as a process does."""
        await self._admin.execute_command("ACL", "SETUSER", USER, "reset", "on", ">first", "~*", "&*", "+@all")
        self.write("first")
        monkeypatch.setenv("REAPER_REDIS_URL_FILE", str(self._file))
        self.url = load_settings(WorkerSettings, arguments={"stream": "orders", "group": "billing"}).redis_url

    def write(self, password: str) -> None:
        """Write the file anew, with a byte order mark, as some editors do."""
        address = f"redis://{USER}:{password}@127.0.0.1:{self._server.port}/0\r\n"
        self._file.write_text(address, encoding="utf-8-sig")

    async def change(self, password: str) -> None:
        """Let only ``password`` in."""
        await self._admin.execute_command("ACL", "SETUSER", USER, "resetpass", f">{password}")

    async def cut(self) -> None:
        """End all connections of the user."""
        await self._admin.execute_command("CLIENT", "KILL", "USER", USER)


@pytest.fixture
async def rotated(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rotated]:
    server = start_server()
    async with commands_client(server.url) as admin:
        user = Rotated(server, admin, tmp_path / "url")
        await user.begin(monkeypatch)
        yield user


async def test_every_kind_of_connection_reads_the_password_again(rotated: Rotated) -> None:
    asyncs = [make(rotated.url) for make in (commands_client, reader_client, notices_client)]
    blocking = blocking_client(rotated.url)
    try:
        for password in ("first", "second", "third"):
            await rotated.change(password)
            rotated.write(password)
            await rotated.cut()
            for client in asyncs:
                await client.connection_pool.disconnect()
                assert await client.ping()
            blocking.connection_pool.disconnect()
            assert await anyio.to_thread.run_sync(blocking.ping)
    finally:
        blocking.close()
        for client in asyncs:
            await client.aclose()


async def test_a_file_that_is_gone_or_nonsense_leaves_the_password_in_force(
    rotated: Rotated, caplog: pytest.LogCaptureFixture
) -> None:
    async with commands_client(rotated.url) as client:
        rotated._file.write_text("")
        assert await client.ping()
        await client.connection_pool.disconnect()
        rotated._file.unlink()
        assert await client.ping()
    told = [record.getMessage() for record in caplog.records if "using the last password" in record.getMessage()]
    assert len(told) == 2
    assert "first" not in caplog.text


def denied(worker: Worker) -> bool:
    assert worker.process is not None
    return bool(worker.process.denials)


async def test_worker_and_reaper_live_through_a_change_of_the_password(
    rotated: Rotated, caplog: pytest.LogCaptureFixture
) -> None:
    handler = scene.Handler()
    admin = rotated._admin
    await create_group(admin)
    enqueued = await enqueue(admin, 5, hold="")
    async with (
        running_reaper(rotated.url, lease_ttl=1) as reaper,
        running_worker(rotated.url, handler) as worker,
        Producer(scene.STREAM, rotated.url) as producer,
    ):
        await holds(reaper)
        await handler.has_started(5)
        await rotated.change("second")
        await rotated.cut()  # the file is written too late: everybody is locked out for a while
        await wait_until(lambda: denied(worker), "the worker is locked out")
        await wait_until(lambda: reaper.denials, "the reaper is, too")
        rotated.write("second")
        handler.open_gate()
        job_id = await producer.enqueue({"n": "last"})
        enqueued |= {job_id: [(b"n", b"last")]}
        await scene.nothing_left(admin)
        await wait_until(lambda: not (denied(worker) or reaper.denials), "nobody is denied")
        await holds(reaper)
    assert await violations(admin, enqueued, [handler], finished=True) == []
    lines = [record.getMessage() for record in caplog.records if "invalid username-password" in record.getMessage()]
    assert sum("cannot reach Redis, retrying" in line for line in lines) == 1
    assert sum("cannot reach Redis: doing=" in line for line in lines) == 1
    assert await admin.xlen(KEYS.dead) == 0
