from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Holding,
    Runs,
    accept,
    consumers_of,
    enqueue,
    looks_at_pending,
    make_worker,
    pending_of,
    running,
    wait_for_settled,
)
from workers.loop.adoption import is_earlier_process

pytestmark = pytest.mark.anyio

DEAD_PROCESS = "w~0123456789ab"


async def hold(client: Redis, *numbers: int, consumer: str = DEAD_PROCESS) -> list[str]:
    """Add jobs and make them pending, as a killed process leaves them. Return their IDs."""
    if not await client.exists(KEYS.stream) or not await client.xinfo_groups(KEYS.stream):
        await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    ids = await enqueue(client, *numbers)
    for entry_id in ids:
        await client.execute_command(
            "XCLAIM", KEYS.stream, KEYS.group, consumer, 0, entry_id, "FORCE", "JUSTID", "LASTID", entry_id,
            "RETRYCOUNT", 1,
        )  # fmt: skip
    return ids


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        ("w~0123456789ab", True),
        ("w.0123456789AB", False),
        ("w.0123456789abc", False),
        ("w", False),
        ("w2~0123456789ab", False),
        ("ww~0123456789ab", False),
        ("w~aaaaaaaaaaaa", False),
    ],
)
def test_only_processes_of_exactly_our_name_are_earlier_ones(consumer: str, expected: bool) -> None:
    assert is_earlier_process(consumer, "w", "w~aaaaaaaaaaaa") is expected
    assert not is_earlier_process("wxa~0123456789ab", "w.a", ""), "a name is no pattern"


# ---- a restart under a configured name


async def test_deliveries_of_earlier_processes_of_the_name_are_made_overdue(server: RedisServer, client: Redis) -> None:
    others = [*await hold(client, 1, consumer="v~0123456789ab"), *await hold(client, 2, consumer="w")]
    [earlier] = await hold(client, 3)
    async with running(make_worker(server.url, accept, name="w", visibility_timeout=600)):

        async def is_overdue() -> bool:
            rows: Any = await client.execute_command("XPENDING", KEYS.stream, KEYS.group, "IDLE", 600_000, "-", "+", 10)
            return [row[0].decode() for row in rows] == [earlier]

        await wait_until(is_overdue, "it is overdue")
    assert {entry for entry, _, _ in await pending_of(client)} == {*others, earlier}


async def test_without_a_configured_name_nothing_is_made_overdue(server: RedisServer, client: Redis) -> None:
    nameless = make_worker(server.url, accept)
    before = f"{nameless.settings.base_name}~0123456789ab"
    [job] = await hold(client, 1, consumer=before)
    await enqueue(client, 2)

    async with running(nameless) as worker:
        await wait_for_settled(worker, 1)

    assert await pending_of(client) == [(job, before, 1)]


async def test_consumers_of_earlier_processes_that_hold_nothing_are_removed(server: RedisServer, client: Redis) -> None:
    await hold(client, 1, consumer="v~0123456789ab")
    for consumer in ("w~111111111111", "w~222222222222", "other"):
        await client.xgroup_createconsumer(KEYS.stream, KEYS.group, consumer)

    async with running(make_worker(server.url, accept, name="w")):
        names = await consumers_of(client)

    *others, own = names
    assert others == ["other", "v~0123456789ab"]
    assert is_earlier_process(own, "w", ours=""), "the only one of the name that is left is the process's own"
    assert own not in ("w~111111111111", "w~222222222222")


# ---- deliveries that arrived unnoticed


async def test_unknown_deliveries_of_ours_are_found_and_not_counted(server: RedisServer, client: Redis) -> None:
    seen = Runs()
    async with running(make_worker(server.url, seen, refresh_s=0.05)) as worker:
        await hold(client, 1, consumer=worker.consumer)
        await wait_until(lambda: seen, "the lost delivery has run")

    assert seen == [(1, 1)]
    assert await pending_of(client) == []


async def test_taking_stock_does_not_run_again_what_runs(server: RedisServer, client: Redis) -> None:
    handler = Holding()
    await enqueue(client, 1, 2)
    async with running(make_worker(server.url, handler, refresh_s=0.01)) as worker:
        await wait_until(lambda: looks_at_pending(server) >= 3, "stock was taken three times")
        handler.gate.set()
        await wait_for_settled(worker, 2)
    assert (sorted(handler.ended), worker.counts.read) == ([(1, "done"), (2, "done")], 2)
