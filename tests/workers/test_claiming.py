"""Reads with CLAIM return entries that are ready in place. Some of these must not run."""

from datetime import timedelta
from math import inf
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from workers.loop.in_flight import Delivery, Interruption, Source
from workers.loop.reading import Planner, Reader
from workers.protocol.calls.membership import GroupSettings
from workers.protocol.calls.moves import Moves
from workers.protocol.messages import CLAIM_READY_MS, RecoveryMode, Redelivery, parse_read_reply
from workers.settings import WorkerSettings

pytestmark = pytest.mark.anyio


class Redis:
    """Answers each read with ``reply``, and records the words of reads and the returned deliveries."""

    def __init__(self, reply: Any = None, *, failures: int = 0) -> None:
        self.reply = reply
        self.failures = failures
        self.read: tuple[Any, ...] = ()
        self.returned: list[object] = []

    async def execute_command(self, command: str, *words: Any) -> Any:
        if command == "XREADGROUP":
            self.read = words
            return self.reply
        if self.failures:
            self.failures -= 1
            raise RedisConnectionError("simulated: the request was lost")
        self.returned.append(words[3:])
        return 1


def a_reader(redis: Redis, redelivery: Redelivery = Redelivery.IN_PLACE) -> tuple[Any, Source]:
    """Return a reader of one stream, as far as its reads need it."""
    reader: Any = object.__new__(Reader)
    source = Source("orders", "orders", inf, None)
    group_settings = GroupSettings(redelivery, timedelta(seconds=30), 3, RecoveryMode.REAPER, reads_retries=False)

    reader._membership = SimpleNamespace(
        group_settings=group_settings, both=(source,), sources=(source,), now_ms=lambda: 0
    )
    reader._settings = WorkerSettings(stream="orders", group="billing")
    reader._moves = Moves(reader._settings.keys, 0, "w1")
    reader._by_key, reader._consumer = {b"orders": source}, "w1"
    reader._commands = reader._connection = redis
    reader._planner, reader._stopping, reader.has_read = Planner(), anyio.Event(), False
    reader._reporter = SimpleNamespace(failed=lambda *_: None)
    return reader, source


@pytest.mark.parametrize(("redelivery", "claims"), [("stream", False), ("retry-stream", False), ("in-place", True)])
async def test_reads_claim_where_jobs_are_not_copied(redelivery: str, *, claims: bool) -> None:
    redis = Redis()
    reader, _ = a_reader(redis, Redelivery(redelivery))
    assert await reader._read(1) == []
    assert ("CLAIM" in redis.read) is claims


def test_a_reply_tells_how_often_each_entry_was_delivered() -> None:
    reply = [[b"orders", [[b"1-1", [b"n", b"1"], 4_000_000_000, 2], [b"2-1", [b"n", b"2"], 0, 0]]]]
    assert parse_read_reply(reply) == [
        (b"orders", b"1-1", [b"n", b"1"], 4_000_000_000, 2),
        (b"orders", b"2-1", [b"n", b"2"], 0, 0),
    ]
    assert parse_read_reply(None) == []


async def test_w7_the_delivery_count_of_a_reply_lacks_this_delivery() -> None:
    rows = [[b"1-1", [b"n", b"1"], 0, 0], [b"2-1", [b"n", b"1"], CLAIM_READY_MS, 2]]
    reader, _ = a_reader(Redis([[b"orders", rows]]))
    new, ready = await reader._read(2)
    assert (new.times_delivered, ready.times_delivered) == (1, 3)


@pytest.mark.parametrize("failures", [0, 2])
async def test_what_was_taken_from_the_living_is_given_back_and_not_run(failures: int) -> None:
    """After the server's clock was set back, a delivery of the future looks idle for longer than any limit.

    A call that fails is repeated before anything else is read, because stock that is taken before that would run the
    delivery (seed 8080).
    """
    rows = [[b"1-1", [b"n", b"1"], -1, 2], [b"2-1", [b"n", b"2"], 4 * CLAIM_READY_MS, 1], [b"3-1", [], 0, 0]]
    redis = Redis([[b"orders", rows]], failures=failures)
    reader, _ = a_reader(redis)
    held = await reader._read(3)
    assert [one.raw_entry_id for one in held] == [b"2-1", b"3-1"]
    assert redis.returned == [("billing", "w1", b"1-1", 2)]


async def test_a_stop_ends_the_attempts_to_give_back() -> None:
    redis = Redis([[b"orders", [[b"1-1", [], -1, 2]]]], failures=10**9)
    reader, _ = a_reader(redis)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader._read, 1)
        await anyio.wait_all_tasks_blocked()
        reader._stopping.set()
    assert redis.returned == []


async def test_a_claimed_delivery_that_runs_here_with_that_count_goes_on() -> None:
    reader, source = a_reader(Redis([[b"orders", [[b"1-1", [], 0, 0], [b"2-1", [], CLAIM_READY_MS, 1]]]]))
    runs, moved = (Delivery(source, entry_id, (), 1, 3, 0, 0.0) for entry_id in (b"1-1", b"2-1"))
    source.hold([runs, moved])
    held = await reader._read(2)
    assert [one.raw_entry_id for one in held] == [b"2-1"]
    assert (source.holds(runs), runs.interruption, moved.interruption) == (True, None, Interruption.LOST)
