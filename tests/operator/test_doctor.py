"""``reaper doctor``: each thing that is wrong is found and named; a sound service has no findings."""

import shlex

import pytest
from redis.asyncio import Redis

from tests.conftest import StartServer
from tests.operator.conftest import Command, run_command
from tests.operator.heartbeats import serve
from tests.scripts.scene import Scene
from tests.support.servers import RedisServer, shown
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.server import knows_claim

pytestmark = pytest.mark.anyio

PAIR = ("--groups", "orders/billing")


async def _wrong(reaper: Command, *words: str) -> list[tuple[str, str]]:
    """Return check and text of each fault."""
    answer = await reaper("doctor", "-o", "json", *words)
    return [(one["check"], one["text"]) for one in answer.data["findings"] if one["level"] == "wrong"]


async def _checks(reaper: Command, *words: str) -> list[str]:
    return [check for check, _ in await _wrong(reaper, *words)]


@pytest.mark.contract
async def test_a_sound_service_is_0(start_server: StartServer) -> None:
    server = start_server(appendonly="yes")
    client = commands_client(server.url)
    scene = Scene(client)
    await scene.prepare()
    await serve(scene)
    answer = await run_command(server.url, "doctor")
    await client.aclose()
    assert answer.code == 0, answer.out
    other = [line.split()[:2] for line in answer.out.splitlines() if not line.startswith("ok ")]
    assert other == []


@pytest.mark.contract
async def test_a_server_that_forgets_and_evicts_is_found(client: Redis, reaper: Command) -> None:
    await client.config_set("maxmemory-policy", "allkeys-lru")
    answer = await reaper("doctor", "-o", "json", *PAIR)
    wrong = {one["check"] for one in answer.data["findings"] if one["level"] == "wrong"}
    assert answer.code == 1
    assert {"eviction", "no_replica"} <= wrong
    assert [one["level"] for one in answer.data["findings"] if one["check"] == "persistence"] == ["warning"]


async def test_writes_that_a_failover_can_lose_are_noted(start_server: StartServer) -> None:
    primary, replica = start_server(repl_diskless_sync_delay="0"), start_server()
    replica.command("REPLICAOF", "127.0.0.1", primary.port)
    await wait_until(lambda: b"connected" in replica.command("ROLE"), "the replica follows")

    async def level() -> list[str]:
        findings = (await run_command(primary.url, "doctor", "-o", "json")).data["findings"]
        return [one["level"] for one in findings if one["check"] == "replication"]

    assert await level() == ["note"]
    primary.command("CONFIG", "SET", "min-replicas-to-write", 1)
    assert await level() == ["ok"]


@pytest.mark.contract
async def test_the_server_is_asked_whether_it_knows_claim(scene: Scene, reaper: Command, server: RedisServer) -> None:
    await serve(scene)
    before = await scene.state()
    first = (await reaper("doctor")).out.splitlines()[0]
    can = await knows_claim(scene.client, "absent")
    assert f"{shown(server.binary)}{' (CLAIM)' if can else ''}, answers within " in first
    assert await scene.state() == before


async def test_several_groups_under_the_wrong_policy_are_found(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    await scene.client.xgroup_create("orders", "audit", "0")
    assert "layout" in await _checks(reaper)


async def test_a_worker_that_complained_of_other_settings_is_found(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    until_ms = await scene.now_ms() + 600_000
    registration = f"{until_ms},worker w1: max_deliveries 3 is in force, 9 is set"
    await scene.client.hset(scene.keys.settings, "registration:w1.1", registration)
    assert await _wrong(reaper) == [("mismatch", "worker w1: max_deliveries 3 is in force, 9 is set")]


@pytest.mark.contract
async def test_trimming_what_was_never_delivered_is_found_where_redis_remembers(
    scene: Scene, reaper: Command, server: RedisServer
) -> None:
    await serve(scene)
    await scene.client.xdel("orders", await scene.add())
    assert ("trimming" in await _checks(reaper)) == (server.version >= (7, 0))


@pytest.mark.contract
async def test_the_rights_to_read_are_enough(scene: Scene, server: RedisServer, reaper: Command) -> None:
    await serve(scene)
    printed = (await reaper("acl", "read-only", *PAIR)).out.splitlines()[1]
    await scene.client.execute_command(*shlex.split(printed))
    answer = await run_command(f"redis://read-only:PASSWORD@127.0.0.1:{server.port}/0", "doctor", *PAIR)
    assert answer.code == 0, answer.err
