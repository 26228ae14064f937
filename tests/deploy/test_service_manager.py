"""systemd hears when a process is ready, that it lives by the judgement of ``/livez``, and that it stops."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper.web.vitals import ReaperCondition
from tests.deploy.service_manager import Ear, listening
from tests.faults.scene import create_group, enqueue, holds, running_reaper
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.runtime.health_server import Pulse
from workers.runtime.service_manager import Messages, ServiceManager, reporting_to_service_manager

pytestmark = pytest.mark.anyio


class Told:
    """A condition that a test sets."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.ready = False
        self.stopping = False
        self.state = "starting"

    def ailments(self) -> list[str]:
        """Return what the test says."""
        return self.wrong

    def is_ready(self) -> bool:
        """Return what the test says."""
        return self.ready

    def is_stopping(self) -> bool:
        """Return what the test says."""
        return self.stopping

    def summary(self) -> str:
        """Return what the test says."""
        return self.state


# --- the messages


def test_each_state_is_sent_once() -> None:
    condition = Told()
    messages = Messages(condition, has_watchdog=False)
    assert messages.due() == ["STATUS=starting"]
    condition.ready, condition.state = True, "holds 0 of 1 group"
    assert (messages.due(), messages.due()) == (["READY=1", "STATUS=holds 0 of 1 group"], [])
    condition.stopping, condition.state = True, "leaving"
    assert (messages.due(), messages.due(), messages.last()) == (["STOPPING=1", "STATUS=leaving"], [], [])


def test_a_process_that_ends_by_itself_sends_stopping() -> None:
    assert Messages(Told(), has_watchdog=False).last() == ["STOPPING=1"]


def test_a_process_that_stops_before_it_is_ready_never_sends_ready() -> None:
    condition = Told()
    condition.ready = condition.stopping = True
    assert Messages(condition, has_watchdog=False).due() == ["STOPPING=1", "STATUS=starting"]


@pytest.mark.parametrize("watchdog_s", [0.2, 1.0, 3.0, 30.0])
def test_three_messages_fit_into_the_watchdogs_timeout(watchdog_s: float) -> None:
    manager = ServiceManager("/run/systemd/notify", watchdog_s)
    messages = Messages(Told(), has_watchdog=True)
    assert 3 * manager.interval_s <= watchdog_s + 1e-9
    assert all("WATCHDOG=1" in messages.due() for _ in range(4))


def test_an_unhealthy_process_sends_its_state_once_and_nothing_to_the_watchdog() -> None:
    condition = Told()
    messages = Messages(condition, has_watchdog=True)
    assert messages.due() == ["STATUS=starting", "WATCHDOG=1"]
    condition.wrong = ["the loop hangs for 31 s"]
    assert messages.due() == ["STATUS=the loop hangs for 31 s"]
    condition.wrong = ["the loop hangs for 32 s"]
    assert messages.due() == []
    condition.wrong = []
    assert messages.due() == ["STATUS=starting", "WATCHDOG=1"]


# --- to whom


def test_without_systemd_nobody_is_told() -> None:
    assert ServiceManager.from_environment({}) is None
    assert ServiceManager.from_environment({"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1000"}) is None


@pytest.mark.parametrize(
    ("variables", "patience"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_where_it_waits_for_this_process(variables: dict[str, str], patience: float | None) -> None:
    found = ServiceManager.from_environment({"NOTIFY_SOCKET": "/run/systemd/notify", **variables})
    assert found == ServiceManager("/run/systemd/notify", patience)


@pytest.mark.parametrize("where", ["path", "abstract"])
def test_a_datagram_arrives(where: str, tmp_path: Path) -> None:
    address = str(tmp_path / "notify") if where == "path" else f"@stream-reaper-test-{os.getpid()}"
    with listening(address) as ear:
        ServiceManager(address).send("READY=1", "STATUS=fine")
        assert (ear.lines, ear.states) == (["READY=1"], ["fine"])


async def test_a_socket_that_is_gone_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with reporting_to_service_manager(lambda _pulse: Told(), {"NOTIFY_SOCKET": str(tmp_path / "nowhere")}):
        pass
    assert [record.message.split(":")[0] for record in caplog.records] == ["cannot notify systemd"]


# --- who


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    """systemd's, for one process."""
    with listening(tmp_path / "notify") as found:
        yield found


def _environment(ear: Ear, watchdog_s: float) -> dict[str, str]:
    return {"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": str(round(watchdog_s * 1_000_000))}


async def test_a_replica_tells_as_a_process(server: RedisServer, client: Redis, processes: Processes, ear: Ear) -> None:
    await create_group(client)
    flags = ("--redis-url", server.url, "--groups", "orders/billing")
    replica = processes.reaper(*flags, env=_environment(ear, 0.2))
    await ear.hears("READY=1")
    await ear.hears("STATUS=holds 1 of 1 group")
    assert ear.feedings > 0
    replica.terminate()
    assert await replica.wait() == 0
    assert ear.lines == ["READY=1", "STOPPING=1"]


async def test_a_worker_tells_as_a_process_that_it_drains(
    server: RedisServer, client: Redis, processes: Processes, ear: Ear, tmp_path: Path
) -> None:
    await create_group(client)
    released = tmp_path / "released"
    worker = processes.worker(
        "tests.deploy.draining_program:worker", "--redis-url", server.url,
        env=_environment(ear, 30) | {"RELEASED_BY": str(released)},
    )  # fmt: skip
    await ear.hears("READY=1")
    await enqueue(client, 1)
    await worker.prints("started")
    worker.terminate()
    await ear.hears("STOPPING=1")
    assert worker.running  # a job still runs
    released.touch()
    assert await worker.wait() == 0
    assert (ear.lines, ear.feedings > 0) == (["READY=1", "STOPPING=1"], True)


async def test_a_hung_worker_feeds_the_watchdog_no_more(
    server: RedisServer, client: Redis, processes: Processes, ear: Ear, tmp_path: Path
) -> None:
    await create_group(client)
    released = tmp_path / "released"
    worker = processes.worker(
        "tests.deploy.blocking_program:worker", "--redis-url", server.url,
        env=_environment(ear, 0.4) | {"RELEASED_BY": str(released)},
    )  # fmt: skip
    await ear.hears("READY=1")
    await enqueue(client, 1)
    await worker.prints(r"watchdog gets no more messages: lines=.STATUS=the event loop has not answered for \d+ s")
    released.touch()
    await wait_until(lambda: len(ear.states) == 4, "the worker is well again")
    told = ear.heard
    ailed = next(index for index, line in enumerate(told) if "has not answered" in line)
    assert "works on orders/billing" in told[ailed + 1]  # no message in between
    fed = ear.feedings
    await wait_until(lambda: ear.feedings > fed, "the watchdog is fed again")


async def test_a_replica_says_how_many_groups_it_holds(server: RedisServer, client: Redis) -> None:
    await create_group(client)
    async with running_reaper(server.url) as reaper:
        await holds(reaper)
        pulse = Pulse()
        condition = ReaperCondition(reaper, pulse)
        assert (condition.ailments(), condition.is_ready(), condition.summary()) == ([], True, "holds 1 of 1 group")
        pulse.stop()
