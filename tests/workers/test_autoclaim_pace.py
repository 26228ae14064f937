"""How often an embedded worker looks for what stalls."""

import anyio
import pytest
from redis.asyncio import Redis

from tests.faults.scene import Handler, create_group, enqueue, running_worker
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import looks_at_pending
from workers.embedded.walk import Walk
from workers.loop import reading
from workers.protocol import connection

pytestmark = pytest.mark.anyio

VISIBILITY_S = 0.5


async def test_a_worker_with_nothing_to_recover_looks_about_once_in_a_visibility_timeout(
    server: RedisServer, client: Redis
) -> None:
    await create_group(client)
    async with running_worker(server.url, Handler(), recovery="embedded", visibility_timeout=VISIBILITY_S):
        began, before = anyio.current_time(), looks_at_pending(server)  # it asked for the right when it joined
        await wait_until(lambda: looks_at_pending(server) >= before + 4, "it has looked four times")
        # A busy machine makes it look less often, never more.
        assert anyio.current_time() - began > 3 * VISIBILITY_S * 0.9


@pytest.mark.parametrize(("recovery", "longest_ms"), [("embedded", 400), ("reaper", 2_000)])
async def test_no_read_of_one_who_recovers_blocks_for_as_long_as_an_outage_lasts_that_counts(
    server: RedisServer, client: Redis, recovery: str, longest_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends within it would be noticed by nobody, and what lives would look idle."""
    monkeypatch.setattr(reading, "BLOCK_MS", connection.BLOCK_MS)
    await create_group(client)
    async with client.monitor() as monitor:

        async def next_one(name: str, word: str = "") -> list[str]:
            while True:
                words = str((await monitor.next_command())["command"]).split(" ")
                if words[0] == name and (not word or word in words):
                    return words

        async with running_worker(server.url, Handler(), recovery=recovery, visibility_timeout=1.2):
            if recovery == "embedded":
                await next_one("XPENDING")  # it looks for what stalls, and does so again a visibility timeout later
            words = await next_one("XREADGROUP", "BLOCK")
    block_ms = int(words[words.index("BLOCK") + 1])
    assert 0 < block_ms <= longest_ms
    assert recovery == "embedded" or block_ms == longest_ms


async def test_one_whose_slots_are_all_taken_hears_of_redis_all_the_same(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing meanwhile, and would miss an outage between two looks at what stalls."""
    monkeypatch.setattr(Walk, "due_in_s", lambda *_: 3_600.0)
    await create_group(client)
    handler = Handler()
    async with running_worker(server.url, handler, recovery="embedded", visibility_timeout=VISIBILITY_S, concurrency=1):
        await enqueue(client, 1, hold="")
        await wait_until(lambda: len(handler.starts) == 1, "its slot is taken")
        async with client.monitor() as monitor:
            asked: list[str] = []
            while asked.count("INFO") < 5:
                asked.append(str((await monitor.next_command())["command"]).split(" ")[0])
        assert "XREADGROUP" not in asked
        handler.open_gate()
