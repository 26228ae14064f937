"""Reads with MAXCOUNT and MAXSIZE, which limit the whole reply (Redis 8.10), on simulated servers, and on real ones
that reject them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.support.servers import RedisServer, has_maxcount
from tests.support.simulated import SimulatedServer, simulated_server
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Runs,
    accept,
    enqueue,
    make_worker,
    pending_of,
    process_of,
    reports_of,
    running,
    wait_for_settled,
)
from workers import Worker
from workers.protocol.calls.moves import Moves
from workers.protocol.connection import KeptConnection, commands_client

pytestmark = pytest.mark.anyio

SLOTS = 8
BEFORE, SINCE = (8, 8), (8, 10)


class Reads(list[tuple[tuple[Any, ...], Counter[str] | None]]):
    """The reads of a worker, as words and number of entries from each stream, or None if the server rejected it."""

    @property
    def found(self) -> list[Counter[str]]:
        """The replies that were not empty."""
        return [entries for _, entries in self if entries]

    @property
    def rejected(self) -> int:
        """How many were rejected."""
        return sum(entries is None for _, entries in self)

    @property
    def limit(self) -> list[bool]:
        """Whether each read asked to limit the whole reply."""
        return ["MAXCOUNT" in words for words, _ in self]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Note the reads of all workers."""
    noted, send = Reads(), KeptConnection.execute_command

    async def execute_command(self: KeptConnection, *words: Any) -> Any:
        if words[0] != "XREADGROUP":
            return await send(self, *words)
        try:
            reply = await send(self, *words)
        except ResponseError:
            noted.append((words, None))
            raise
        noted.append((words, Counter({stream.decode(): len(entries) for stream, entries in reply or ()})))
        return reply

    monkeypatch.setattr(KeptConnection, "execute_command", execute_command)
    return noted


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedServer]:
    """A simulated Redis 8.10, where workers acknowledge without a script."""

    async def not_checked(*_: Any) -> None:
        pass

    async def ack(_: Moves, client: Redis, source: str, ids: list[bytes], **_also: Any) -> None:
        await client.execute_command("XACK", source, KEYS.group, *ids)

    monkeypatch.setattr("workers.process.check_server", not_checked)
    monkeypatch.setattr(Moves, "ack", ack)
    with simulated_server(SINCE) as server:
        yield server


async def drain(url: str, jobs: int, retries: int, **settings: Any) -> Worker:
    """Enqueue jobs to both streams, and have a worker run them all."""
    async with commands_client(url) as client:
        await enqueue(client, *range(jobs))
        await enqueue(client, *range(retries), stream=KEYS.retry)
        async with running(make_worker(url, accept, **{"concurrency": SLOTS, **settings})) as worker:
            await wait_for_settled(worker, jobs + retries)
        assert await pending_of(client) == []
    return worker


async def test_full_streams_are_served_in_turn_and_no_slot_is_filled_twice(
    simulated: SimulatedServer, reads: Reads
) -> None:
    await drain(simulated.url, 40, 40, redelivery="retry-stream")

    assert all(reads.limit)
    assert all(entries.total() <= words[words.index("COUNT") + 1] <= SLOTS for words, entries in reads if entries)
    first = reads.found[:6]  # both streams are full until then
    assert [set(entries) for entries in first] == [{KEYS.retry}, {KEYS.stream}] * 3


async def test_one_slot_serves_both_streams_in_turn_without_an_empty_read(
    simulated: SimulatedServer, reads: Reads
) -> None:
    await drain(simulated.url, 5, 5, redelivery="retry-stream", concurrency=1)

    assert [set(entries) for entries in reads.found] == [{KEYS.retry}, {KEYS.stream}] * 5
    assert all(entries for _, entries in reads[:10])


async def test_jobs_of_one_stream_alone_fill_all_free_slots(simulated: SimulatedServer, reads: Reads) -> None:
    await drain(simulated.url, 80, 0, redelivery="retry-stream")
    since = len(reads.found)
    reads.clear()
    with simulated_server(BEFORE) as older:
        await drain(older.url, 80, 0, redelivery="retry-stream")

    assert since < 0.7 * len(reads.found)  # there, each stream has half of the free slots


@pytest.mark.parametrize(
    ("redelivery", "recovery"), [("in-place", "reaper"), ("in-place", "embedded"), ("retry-stream", "embedded")]
)
async def test_reads_limit_the_reply_in_each_mode(
    simulated: SimulatedServer, reads: Reads, redelivery: str, recovery: str
) -> None:
    await drain(simulated.url, 20, 0, redelivery=redelivery, recovery=recovery)

    assert (all(reads.limit), reads.rejected) == (True, 0)
    assert all(("CLAIM" in words) is (redelivery == "in-place") for words, _ in reads)


async def test_entries_that_are_ready_in_place_count_for_the_limit(simulated: SimulatedServer, reads: Reads) -> None:
    seen = Runs()
    worker = make_worker(simulated.url, seen, concurrency=SLOTS, redelivery="in-place")
    async with commands_client(simulated.url) as client, running(worker):
        await wait_until(lambda: reads, "the worker has joined and reads")
        pipeline = client.pipeline()
        ids = [f"{number + 1}-0" for number in range(2 * SLOTS)]
        for number, entry_id in enumerate(ids):
            pipeline.execute_command("XADD", KEYS.stream, entry_id, "n", number)
        pipeline.execute_command("XREADGROUP", "GROUP", KEYS.group, "gone", "COUNT", 5, "STREAMS", KEYS.stream, ">")
        pipeline.execute_command("XCLAIM", KEYS.stream, KEYS.group, "gone", 0, *ids[:5], "IDLE", 2 * 10**9)
        await pipeline.execute()
        await wait_for_settled(worker, 2 * SLOTS)

    assert reads.found[0].total() == SLOTS
    assert {number for number, deliveries in seen if deliveries > 1} == set(range(5))


async def test_a_reply_has_one_entry_if_each_is_as_large_as_a_reply_may_be(
    simulated: SimulatedServer, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.loop.reading.LARGEST_REPLY", 1)
    await drain(simulated.url, 5, 5, redelivery="retry-stream")

    assert [entries.total() for entries in reads.found] == [1] * 10


# ---- servers that reject the words


async def test_a_server_that_is_older_from_now_on_is_asked_as_before(simulated: SimulatedServer, reads: Reads) -> None:
    async with commands_client(simulated.url) as client:
        worker = make_worker(simulated.url, accept, redelivery="retry-stream", concurrency=SLOTS)
        reports = reports_of(worker, "error")
        async with running(worker):
            await wait_until(lambda: reads.limit, "the worker reads")
            simulated.become(BEFORE)
            await wait_until(lambda: reads.rejected, "a read is rejected")
            await enqueue(client, *range(20))
            await wait_for_settled(worker, 20)

    assert (reads.rejected, reads.limit[-1], reports) == (1, False, [])


async def test_a_server_that_is_newer_is_asked_again_after_a_lost_connection(
    simulated: SimulatedServer, reads: Reads
) -> None:
    simulated.become(BEFORE)
    worker = make_worker(simulated.url, accept, redelivery="retry-stream")
    async with commands_client(simulated.url) as client, running(worker):
        await wait_until(lambda: reads.limit[-1:] == [False], "the worker reads")
        simulated.become(SINCE)
        await process_of(worker)._context.reads.connection_pool.disconnect()
        await wait_until(lambda: reads.limit[-1], "the worker asks again")
        await enqueue(client, *range(20))
        await wait_for_settled(worker, 20)

    assert reads.rejected == 1


@pytest.mark.contract
async def test_a_real_server_rejects_the_words_once_or_takes_them(
    server: RedisServer, client: Redis, reads: Reads
) -> None:
    worker = make_worker(server.url, accept, redelivery="retry-stream", concurrency=SLOTS)
    reports = reports_of(worker, "error")
    async with running(worker):
        await wait_until(lambda: len(reads) > 2, "the worker reads")
        await enqueue(client, *range(20))
        await enqueue(client, *range(20), stream=KEYS.retry)
        await wait_for_settled(worker, 40)

    assert reads.rejected == (not has_maxcount(server))
    assert sum(reads.limit) == (len(reads) if has_maxcount(server) else 1)
    assert (await pending_of(client), reports) == ([], [])
