"""The stage of an act rejects settings that cannot work, and its reads of Redis return the state."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper.drill import cast, queries
from reaper.drill.queries import View
from reaper.drill.records import Role
from reaper.drill.recoveries import RECOVERIES
from reaper.drill.redis_server import Server
from reaper.drill.settings import DrillSettings
from reaper.drill.stage import Stage, set_stage
from reaper.drill.trace import PlannedJob
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

REAPER = RECOVERIES["reaper"]


def _jobs(seconds: float) -> list[PlannedJob]:
    return [PlannedJob(1, timedelta(0), timedelta(seconds=seconds))]


@pytest.fixture
async def stage(server: RedisServer, client: Redis, tmp_path: Path) -> Stage:
    at = Server(server.url, "7", "a server of the tests")
    own = set_stage(at, DrillSettings(), REAPER, tmp_path, ("drill", "reapers"))
    stage = replace(own, client=client, namespace_client=client)
    await client.xgroup_create(stage.keys.stream, stage.keys.group, id="0", mkstream=True)
    return stage


def test_no_bare_worker_plays_where_a_job_reaches_the_visibility_timeout() -> None:
    assert DrillSettings().for_jobs(_jobs(1.9)) == DrillSettings()
    assert DrillSettings().for_jobs(_jobs(2.0)) == DrillSettings(bare_worker=False)
    assert DrillSettings().for_jobs([]) == DrillSettings()


async def test_the_last_of_several_workers_is_bare_and_reapers_come_with_the_recovery(stage: Stage) -> None:
    assert [(slot.name, slot.role) for slot in cast.slots(stage)] == [
        ("w1", Role.WORKER), ("w2", Role.WORKER), ("w3", Role.WORKER), ("w4", Role.BARE_WORKER),
        ("r1", Role.REAPER), ("r2", Role.REAPER), ("r3", Role.REAPER),
    ]  # fmt: skip


async def test_embedded_workers_are_told_to_recover(stage: Stage) -> None:
    embedded = replace(stage, recovery=RECOVERIES["embedded"])
    assert [slot.role for slot in cast.slots(embedded)] == [Role.WORKER] * 3 + [Role.BARE_WORKER]
    flags = [cast.slots(played)[0].command("w1-1")[0] for played in (stage, embedded)]
    assert ["--recovery" in words for words in flags] == [False, True]


async def test_processes_get_no_settings_but_those_of_the_drill(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REAPER_NAMESPACE", "REAPER_STREAM", "REDIS_URL"):
        monkeypatch.setenv(name, "somebody-elses")
    given = [slot.command("x-1")[1] for slot in cast.slots(stage)]
    assert given
    assert "somebody-elses" not in {value for environment in given for value in environment.values()}


async def _enqueue(stage: Stage, *numbers: int, **more: str) -> list[bytes]:
    words = [word for pair in more.items() for word in pair]
    return [await stage.client.execute_command("XADD", stage.keys.stream, "*", "n", n, *words) for n in numbers]


async def _read(stage: Stage, consumer: str, count: int) -> None:
    await stage.client.xreadgroup(stage.keys.group, consumer, {stage.keys.stream: ">"}, count=count)


async def test_a_view_tells_where_jobs_are_and_goes_on_from_the_one_before(stage: Stage) -> None:
    ids = await _enqueue(stage, 1, 2, 3, 4)
    await _read(stage, "w1-1.nonce", 2)
    await stage.client.xack(stage.keys.stream, stage.keys.group, ids[0])
    await stage.client.zadd(stage.keys.schedule, {b"packed": 1})
    await stage.client.xadd(stage.keys.dead, {"n": 9})
    first = await queries.look(stage, View())
    assert first == View(ready=2, in_flight=1, quarantined=1, dead=1, last_delivered=ids[1])
    assert first.outstanding == 4
    await _read(stage, "w1-1.nonce", 1)
    assert await queries.look(stage, first) == View(ready=1, in_flight=2, quarantined=1, dead=1, last_delivered=ids[2])


@pytest.mark.parametrize(
    ("fields", "spared"),
    [({}, False), ({"reaper.deliveries": "1"}, False), ({"reaper.deliveries": "2"}, True), ({"poison": "1"}, True)],
)
async def test_a_worker_is_spared_where_a_crash_would_spoil_the_accounts(
    stage: Stage, fields: dict[str, str], *, spared: bool
) -> None:
    await _enqueue(stage, 1, **fields)
    await _read(stage, "w1-1", 1)
    assert await queries.must_not_crash(stage, await queries.pending(stage)) is spared


async def test_nothing_of_an_act_stays_in_a_redis_that_is_not_ours(stage: Stage) -> None:
    await stage.client.set("mine", "1")
    await _enqueue(stage, 1)
    await stage.client.set(stage.keys.lease, "x")
    await stage.client.zadd(stage.namespace.live, {"digest/r1": 1})
    await stage.client.zadd(stage.namespace.drained, {"r1": 1})
    await queries.forget(stage)
    assert await stage.client.keys("*") == [b"mine"]
