"""The users that deploy/ makes let its processes in, with the rights they need; these show what alerts ask for."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from redis.exceptions import RedisError

from tests.conftest import StartServer
from tests.deploy.assets import DEPLOY
from tests.deploy.metrics import OF_PROMETHEUS, exposed, scraped, used
from tests.deploy.test_monitoring import QUERIES, RULES
from tests.support.http import request
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Producer
from workers.protocol.connection import commands_client
from workers.telemetry import names as telemetry

pytestmark = pytest.mark.anyio

SETTINGS = DEPLOY / "compose/reaper.toml"
SEEN_SOON = {"process_resident_memory_bytes", "reaper_leases_held", "reaper_in_flight", "reaper_recovered_total"}


@dataclass
class Guarded:
    """A server that lets in nobody but the users that were made, and their addresses."""

    server: RedisServer
    folder: Path

    def url(self, user: str) -> str:
        """Return the address for a user."""
        return (self.folder / f"{user}-url").read_text().strip()


async def make_users(server: RedisServer, folder: Path, *words: str) -> None:
    """Run the program as its help says."""
    program = [sys.executable, str(DEPLOY / "redis/make_users.py"), "--config", str(SETTINGS), "--into", str(folder)]
    await anyio.run_process([*program, "--host", "127.0.0.1", "--port", str(server.port), *words])


@pytest.fixture
async def guarded(start_server: StartServer, tmp_path: Path) -> Guarded:
    """Redis with the users of users.acl."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "users.acl").touch()
    server = start_server(aclfile=str(folder / "users.acl"))
    await make_users(server, folder)
    server.command("ACL", "LOAD")
    return Guarded(server, folder)


async def test_strangers_may_only_ask_whether_it_is_there(guarded: Guarded) -> None:
    client = commands_client(guarded.server.url)
    assert await client.ping()
    for words in (("XADD", "orders", "*", "a", "b"), ("INFO",), ("ACL", "LIST")):
        with pytest.raises(RedisError, match=r"(?i)permissions"):
            await client.execute_command(*words)
    await client.aclose()


async def test_a_user_may_not_do_what_is_not_its_work(guarded: Guarded) -> None:
    client = commands_client(guarded.url("worker"))
    for words in (("FLUSHALL",), ("GET", "{orders}:lease:billing"), ("XADD", "mail", "*", "a", "b")):
        with pytest.raises(RedisError, match=r"(?i)permissions"):
            await client.execute_command(*words)
    await client.aclose()


async def test_made_again_they_keep_their_passwords(guarded: Guarded) -> None:
    before = {path.name: path.read_text() for path in guarded.folder.iterdir()}
    await make_users(guarded.server, guarded.folder)
    admin = commands_client(guarded.url("admin"))
    assert await admin.execute_command("ACL", "LOAD") == b"OK"
    await admin.aclose()
    assert {path.name: path.read_text() for path in guarded.folder.iterdir()} == before
    assert guarded.folder.stat().st_mode & 0o777 == 0o700


async def test_no_password_is_in_the_list_of_users(guarded: Guarded) -> None:
    users = (guarded.folder / "users.acl").read_text()
    passwords = [urlsplit(path.read_text()).password for path in guarded.folder.glob("*-url")]
    assert len(set(passwords)) == 7
    assert [password for password in passwords if password is None or password in users] == []


async def test_embedded_workers_need_no_reaper(guarded: Guarded, tmp_path: Path) -> None:
    other = tmp_path / "embedded"
    await make_users(guarded.server, other, "--recovery", "embedded", "--tls")
    assert sorted(path.name for path in other.iterdir()) == [
        "admin-url", "operator-url", "pipeline-url", "producer-url", "read-only-url", "users.acl", "worker-url",
    ]  # fmt: skip
    assert (other / "worker-url").read_text().startswith("rediss://worker:")


async def test_reaper_and_workers_run_as_they_are_deployed_and_show_what_is_asked_for(
    guarded: Guarded, processes: Processes
) -> None:
    async with Producer("orders", guarded.url("producer")) as producer:
        await producer.enqueue({"amount": "1"})
        await _strand(guarded)
        replica = processes.reaper(
            "--config", str(SETTINGS), "--visibility-timeout", "0.5", "--health-port", "0",
            env={"REAPER_REDIS_URL_FILE": str(guarded.folder / "reaper-url")},
        )  # fmt: skip
        worker = processes.python(
            "-c", _IN_COMPOSE, str(DEPLOY / "compose"), "run", "shop:worker", "--health-port", "0",
            env={"REAPER_REDIS_URL_FILE": str(guarded.folder / "worker-url")}, name="worker",
        )  # fmt: skip
        await worker.prints("billed .*, delivery 2")
        await producer.enqueue({"currency": "EUR"})  # without an amount: it fails

    series: list[tuple[str, set[str]]] = []

    async def shown() -> bool:
        pages = [await request(await _port_of(process), "/metrics") for process in (replica, worker)]
        series[:] = [one for page in pages for one in scraped(page.body.decode())]
        return {name for name, _ in series} >= SEEN_SOON and any("error_type" in labels for _, labels in series)

    await wait_until(shown, "the processes show their metrics")
    assert {name for name, _ in series if name.startswith(("reaper_", "messaging_"))} <= _with_made(exposed())
    asked = [used(query) for query in [*(rule["expr"] for rule in RULES), *(query for _, query in QUERIES)]]
    labels = {label for _, labels in series for label in labels} | OF_PROMETHEUS
    labels.add(telemetry.PATTERN.replace(".", "_"))  # only of groups that a pattern finds, and here there are none
    assert {label for _, used_labels in asked for label in used_labels} - labels == set()
    assert {name for names, _ in asked for name in names if not name.startswith(("reaper_", "messaging_"))} <= {
        name for name, _ in series
    }


_IN_COMPOSE = """
import os, sys
os.chdir(sys.argv.pop(1))
from workers.cli import main
main()
"""


def _with_made(names: set[str]) -> set[str]:
    """Add when a counter or histogram began, where the exporter tells that."""
    return names | {name.removesuffix(end) + "_created" for name in names for end in ("_total", "_sum")}


async def _strand(guarded: Guarded) -> None:
    """Read the job by a worker that is never heard of again."""
    client = commands_client(guarded.url("worker"))
    await client.execute_command("XGROUP", "CREATE", "orders", "billing", "0")
    reply: Any = await client.execute_command("XREADGROUP", "GROUP", "billing", "gone", "STREAMS", "orders", ">")
    assert reply
    await client.aclose()


async def _port_of(process: Running) -> int:
    return int((await process.prints(r"health endpoint started: url=http://127\.0\.0\.1:(\d+)/"))[1])
