"""``reaper run`` as a process: start-up checks, signals, and reading the settings file again."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.conftest import StartServer
from tests.operator.heartbeats import GROUP, KEYS
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer, free_port

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

LONG = "lease_ttl = 3600\nvisibility_timeout = 3600\n"


def _table(group: str, *, stream: str = "orders", **values: int) -> str:
    lines = [
        "[[groups]]",
        f'stream = "{stream}"',
        f'group = "{group}"',
        *(f"{name} = {values[name]}" for name in values),
    ]
    return "\n".join(lines) + "\n"


def _write(file: Path, *parts: str) -> None:
    file.write_text("".join(parts))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file that watches orders/billing."""
    path = tmp_path / "reaper.toml"
    _write(path, LONG, _table("billing"))
    return path


async def _holder(client: Redis, processes: Processes, server: RedisServer, file: Path) -> Running:
    await client.xgroup_create("orders", "billing", "0", mkstream=True)
    replica = processes.reaper("--config", str(file), "--redis-url", server.url)
    await replica.prints("lease taken")
    return replica


async def test_a_signal_to_end_releases_the_lease_at_once(
    client: Redis, processes: Processes, server: RedisServer, file: Path
) -> None:
    replica = await _holder(client, processes, server, file)
    assert await client.exists(GROUP.lease) == 1
    replica.terminate()
    assert await replica.wait() == 0
    assert await client.exists(GROUP.lease) == 0
    assert await client.hgetall(KEYS.replicas) == {}


async def test_a_second_signal_ends_the_process_whatever_it_does(
    processes: Processes, start_server: StartServer, file: Path
) -> None:
    server = start_server()
    server.command("XGROUP", "CREATE", "orders", "billing", "0", "MKSTREAM")
    replica = processes.reaper("--config", str(file), "--redis-url", server.url)
    await replica.prints("lease taken")
    server.pause()  # nobody answers: leaving in good order takes a while
    replica.interrupt()
    await replica.prints("stopping: signal=SIGINT")
    replica.interrupt()
    assert await replica.wait() == 130


async def test_every_program_rejects_a_replica_and_none_waits_for_ever(
    processes: Processes, start_server: StartServer
) -> None:
    server = start_server()
    server.command("REPLICAOF", "127.0.0.1", str(free_port()))
    words = {
        "worker": ("-m", "workers", "run", "tests.workers.program:worker"),
        "reaper": ("-m", "reaper", "run", "--groups", "orders/billing"),
        "status": ("-m", "reaper", "status"),
        "doctor": ("-m", "reaper", "doctor"),
    }
    started = [processes.python(*line, "--redis-url", server.url, name=name) for name, line in words.items()]
    for program in started:
        assert await program.wait() != 0
        assert "a replica answers there" in program.output, program.output
