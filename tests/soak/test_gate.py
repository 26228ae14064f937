"""The conditions of a fault of a chaos, on a Redis with a state made by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.faults import Fault, FaultKind, parse_fault
from reaper.drill.producer import Producer
from reaper.drill.records import ProcessRun, Role
from reaper.drill.recoveries import RECOVERIES
from reaper.drill.redis_server import Server
from reaper.drill.stage import Stage, set_stage
from reaper.drill.supervisor import Supervisor
from reaper.drill.toolbox import Toolbox
from reaper.drill.witness import Witness
from tests.soak.gate import NOTHING_LEFT, Gate
from tests.soak.kinds import SOAK_FORMS
from tests.soak.settings import SoakSettings
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

KILL = parse_fault("kill-worker@1")
POISON, DESTROY = parse_fault("poison@1"), parse_fault("destroy-group@1", SOAK_FORMS)
PAUSE, PAUSE_HOLDER = parse_fault("pause-redis@1+1"), parse_fault("pause-holder@1")


class Company(Supervisor):
    """A supervisor whose processes are named by the test."""

    def alive(self, *roles: Role) -> list[ProcessRun]:
        return [run for run in self.history if run.role in roles]

    def kill(self, run: ProcessRun) -> bool:
        run.killed_at = 1.0
        return True


class Play:
    """Faults that go through a gate, each until it is let go."""

    def __init__(self, stage: Stage) -> None:
        self.tools = Toolbox(stage, Company(stage.folder), Producer(stage, []), Witness(stage))
        self.gate, self.through, self.results = Gate(self.tools), list[str](), dict[str, str]()
        self._ends = anyio.Event()

    async def fault(self, fault: Fault) -> None:
        async def inject(fault: Fault) -> str:
            self.through.append(str(fault))
            if fault.lasts:
                await self._ends.wait()
            return ""

        self.results[str(fault)] = await self.gate.play(fault, inject)

    def end(self) -> None:
        self._ends.set()

    def has(self, name: str, role: Role) -> None:
        self.tools.supervisor.history.append(ProcessRun(name, role, 1, 0.0))


def _stage(client: Redis, server: RedisServer, folder: Path, recovery: str) -> Stage:
    at = Server(server.url, "7", "")
    stage = set_stage(at, SoakSettings(chaos=10), RECOVERIES[recovery], folder, ("drill", "reapers"))
    return replace(stage, client=client, namespace_client=client)


@pytest.fixture
async def play(client: Redis, server: RedisServer, tmp_path: Path) -> Play:
    stage = _stage(client, server, tmp_path, "embedded")
    await client.xgroup_create(stage.keys.stream, stage.keys.group, id="0", mkstream=True)
    return Play(stage)


@asynccontextmanager
async def _waiting(play: Play, fault: Fault) -> AsyncIterator[None]:
    """Let ``fault`` wait at the gate. The block lets it through."""
    async with anyio.create_task_group() as group:
        group.start_soon(play.fault, fault)
        await wait_until(lambda: play.tools.waiting == 1 or str(fault) in play.through, "it waits, or does not")
        assert str(fault) not in play.through
        yield
        await wait_until(lambda: str(fault) in play.results, "it was let through")
    assert str(fault) in play.through


async def _deliver(play: Play, consumer: str, *fields: str) -> bytes:
    keys, client = play.tools.stage.keys, play.tools.stage.client
    entry_id: bytes = await client.execute_command("XADD", keys.stream, "*", "n", "1", *fields)
    await client.execute_command("XREADGROUP", "GROUP", keys.group, consumer, "STREAMS", keys.stream, ">")
    return entry_id


@pytest.mark.parametrize("fault", [KILL, POISON, DESTROY, PAUSE])
async def test_where_nothing_is_under_way_a_fault_comes_at_once(play: Play, fault: Fault) -> None:
    play.end()
    await play.fault(fault)
    assert (play.through, play.results) == ([str(fault)], {str(fault): ""})


@pytest.mark.parametrize("fault", [POISON, DESTROY])
async def test_what_a_dead_worker_holds_is_recovered_first(play: Play, fault: Fault) -> None:
    play.has("w2-1", Role.WORKER)
    stage, entry_id = play.tools.stage, await _deliver(play, "w1-1.abc")
    async with _waiting(play, fault):
        await stage.client.xack(stage.keys.stream, stage.keys.group, entry_id)


async def test_what_a_live_worker_holds_keeps_nobody_waiting(play: Play) -> None:
    play.has("w1-1", Role.WORKER)
    await _deliver(play, "w1-1.abc")
    await play.fault(POISON)
    assert play.results == {str(POISON): ""}


@pytest.mark.parametrize("fault", [POISON, DESTROY])
async def test_a_job_at_its_last_delivery_comes_to_its_end_first(play: Play, fault: Fault) -> None:
    play.has("w1-1", Role.WORKER)
    stage, entry_id = play.tools.stage, await _deliver(play, "w1-1", "reaper.deliveries", "2")
    async with _waiting(play, fault):
        await stage.client.xack(stage.keys.stream, stage.keys.group, entry_id)


async def test_poison_waits_for_jobs_that_have_lost_a_delivery_and_run_again(play: Play) -> None:
    play.has("w1-1", Role.WORKER)
    stage, entry_id = play.tools.stage, await _deliver(play, "w1-1", "reaper.deliveries", "1")
    async with _waiting(play, POISON):
        await stage.client.xack(stage.keys.stream, stage.keys.group, entry_id)


async def test_poison_waits_for_jobs_that_were_claimed_and_run_again(play: Play) -> None:
    play.has("w1-1", Role.WORKER)
    stage, entry_id = play.tools.stage, await _deliver(play, "w1-1")
    await stage.client.xclaim(stage.keys.stream, stage.keys.group, "w1-1", 0, [entry_id])
    async with _waiting(play, POISON):
        await stage.client.xack(stage.keys.stream, stage.keys.group, entry_id)


async def test_poison_waits_for_jobs_that_have_lost_a_delivery_and_are_ready_again(play: Play) -> None:
    stage = play.tools.stage
    entry_id = await stage.client.xadd(stage.keys.stream, {"n": "1", "reaper.deliveries": "1"})
    async with _waiting(play, POISON):
        await stage.client.xdel(stage.keys.stream, entry_id)


async def test_quarantined_jobs_are_released_before_fresh_poison_comes(play: Play) -> None:
    stage = play.tools.stage
    await stage.client.zadd(stage.keys.schedule, {b"quarantined": 1})
    async with _waiting(play, POISON):
        await stage.client.unlink(stage.keys.schedule)


@pytest.mark.parametrize("fault", [KILL, POISON, DESTROY])
async def test_poison_is_a_dead_letter_before_anything_else_hits_workers(play: Play, fault: Fault) -> None:
    stage = play.tools.stage
    play.tools.producer.poisonous = 1
    async with _waiting(play, fault):
        await stage.client.xadd(stage.keys.dead, {"n": "1"})


async def test_redis_is_not_stopped_twice_at_a_time(play: Play) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(play.fault, PAUSE)
        await wait_until(lambda: play.through == [str(PAUSE)], "the first is under way")
        async with _waiting(play, parse_fault("pause-redis@2+1")):
            play.end()


async def test_a_holder_that_is_to_be_paused_has_held_the_lease_for_a_while(
    client: Redis, server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = _stage(client, server, tmp_path, "reaper")
    monkeypatch.setattr("tests.soak.gate.HELD_FOR_S", 0.2)
    await client.xgroup_create(stage.keys.stream, stage.keys.group, id="0", mkstream=True)
    play = Play(stage)
    await client.set(stage.keys.lease, "r1-1-7.ab")
    async with _waiting(play, PAUSE_HOLDER):  # that one is dead
        await client.set(stage.keys.lease, "r2-1-7.ab")
        play.has("r2-1", Role.REAPER)


async def test_what_waits_when_all_is_over_is_left_out(play: Play) -> None:
    play.tools.producer.poisonous = 1
    play.tools.nothing_left = True
    await play.fault(KILL)
    assert play.results == {str(KILL): NOTHING_LEFT}
    assert (play.through, play.tools.waiting) == ([], 0)


@pytest.mark.parametrize("kind", FaultKind)
async def test_a_fault_that_is_over_stands_in_nobodys_way(play: Play, kind: FaultKind) -> None:
    play.end()
    for moment in ("1", "2"):
        fault = Fault(kind, parse_fault(f"poison@{moment}").at)
        await play.fault(fault)
        assert play.results[str(fault)] == ""
