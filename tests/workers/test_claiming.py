"""The claims of a worker, and their times.

While a reaper serves the group, it claims only deliveries laid aside for readers.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from workers.loop.claiming import Claiming
from workers.loop.in_flight import Delivery, Interruption, Source
from workers.loop.reading import Reader
from workers.protocol.calls.membership import Agreement
from workers.protocol.calls.moves import Moves
from workers.protocol.errors import UnexpectedReplyError
from workers.protocol.keys import group_keys
from workers.protocol.messages import (
    CLAIM_READY_MS,
    ClaimedEntry,
    RecoveryMode,
    Redelivery,
    parse_claim_reply,
)
from workers.settings import WorkerSettings


def agreement(redelivery: Redelivery, visibility_s: float, recovery: RecoveryMode = RecoveryMode.REAPER) -> Agreement:
    return Agreement(redelivery, timedelta(seconds=visibility_s), 3, recovery, reads_retries=False)


@pytest.mark.parametrize(("redelivery", "claims"), [("stream", False), ("retry-stream", False), ("in-place", True)])
def test_reads_claim_where_jobs_are_not_copied(redelivery: str, *, claims: bool) -> None:
    claiming: Any = object.__new__(Claiming)
    claiming._membership = a_membership(agreement=agreement(Redelivery(redelivery), 30), joins=1)
    claiming._refused_in = 0
    assert claiming.is_on is claims
    claiming._refused_in = 1
    assert not claiming.is_on, "the server knows no CLAIM"


def test_a_reply_tells_how_often_each_entry_was_delivered() -> None:
    reply = [[b"orders", [[b"1-1", [b"n", b"1"], 4_000_000_000, 2], [b"2-1", [b"n", b"2"], 0, 0]]]]
    assert parse_claim_reply(reply) == [
        ClaimedEntry(b"orders", b"1-1", [b"n", b"1"], 4_000_000_000, 2),
        ClaimedEntry(b"orders", b"2-1", [b"n", b"2"], 0, 0),
    ]
    assert parse_claim_reply(None) == []
    with pytest.raises(UnexpectedReplyError, match="CLAIM answered"):
        parse_claim_reply([[b"orders", [[b"1-1", [b"n", b"1"]]]]])


def a_membership(**more: Any) -> SimpleNamespace:
    """As far as claiming knows it."""
    known = {
        "agreement": agreement(Redelivery.IN_PLACE, 30),
        "now_ms": lambda: 0,
    }
    return SimpleNamespace(**known | more)


@pytest.mark.anyio
async def test_w7_the_delivery_count_of_a_reply_lacks_this_delivery() -> None:
    claiming: Any = object.__new__(Claiming)
    source = Source("orders", "orders", inf, None)
    claiming._by_key, claiming._membership = {b"orders": source}, a_membership()
    claiming._settings = WorkerSettings(stream="orders", group="billing")

    async def send(more: Sequence[str | int]) -> Any:
        assert more == ("CLAIM", CLAIM_READY_MS)
        return [[b"orders", [[b"1-1", [b"n", b"1"], 0, 0], [b"2-1", [b"n", b"1"], CLAIM_READY_MS, 2]]]]

    new, ready = await claiming.deliveries(send, 0.0)
    assert (new.times_delivered, ready.times_delivered) == (1, 3)


class Returning:
    """A Redis that records the returned deliveries."""

    def __init__(self) -> None:
        self.returned: list[object] = []

    async def execute_command(self, _command: str, *words: Any) -> Any:
        self.returned.append(words[3:])
        return 1


@pytest.mark.anyio
async def test_what_was_taken_from_the_living_is_given_back_and_not_run() -> None:
    """After the server's clock was set back, a delivery of the future looks idle for longer than any limit."""
    claiming: Any = object.__new__(Claiming)
    source, redis = Source("orders", "orders", inf, None), Returning()
    claiming._by_key, claiming._commands, claiming._consumer = {b"orders": source}, redis, "w1"
    claiming._moves = Moves(group_keys("orders", "billing"), 0)
    claiming._settings = WorkerSettings(stream="orders", group="billing")
    claiming._membership = a_membership(both=(source,))

    async def send(_: Sequence[str | int]) -> Any:
        rows = [[b"1-1", [b"n", b"1"], -1, 2], [b"2-1", [b"n", b"2"], 4 * CLAIM_READY_MS, 1], [b"3-1", [], 0, 0]]
        return [[b"orders", rows]]

    held = await claiming.deliveries(send, 0.0)
    assert [one.raw_entry_id for one in held] == [b"2-1", b"3-1"]
    assert redis.returned == [("billing", "w1", b"1-1", 2)]


class Forgetful(Returning):
    """Redis that is out of reach for a moment, once per command."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[str] = []

    async def execute_command(self, command: str, *words: Any) -> Any:
        if command not in self.failed:
            self.failed.append(command)
            raise RedisConnectionError("simulated: the request was lost")
        return await super().execute_command(command, *words)


@pytest.mark.anyio
async def test_what_a_read_has_brought_is_left_until_all_of_it_is_known() -> None:
    """Stock that is taken before that would run what is to be given back (seed 8080)."""
    claiming: Any = object.__new__(Claiming)
    source, redis = Source("orders", "orders", inf, None), Forgetful()
    claiming._by_key, claiming._commands, claiming._consumer = {b"orders": source}, redis, "w1"
    claiming._moves = Moves(group_keys("orders", "billing"), 0)
    claiming._settings, claiming._answer = WorkerSettings(stream="orders", group="billing"), None
    claiming._membership = a_membership(both=(source,))

    async def send(_: Sequence[str | int]) -> Any:
        return [[b"orders", [[b"1-1", [], -1, 2], [b"2-1", [], 4 * CLAIM_READY_MS, 1]]]]

    assert (await claiming.left(), claiming.is_left) == ([], False)
    with pytest.raises(RedisConnectionError):
        await claiming.deliveries(send, 3.0)
    assert (claiming.is_left, redis.returned) == (True, [])
    while claiming.is_left:
        with suppress(RedisConnectionError):
            held = await claiming.left()
    assert [(one.raw_entry_id, one.proven) for one in held] == [(b"2-1", 3.0)]
    assert set(redis.returned) == {("billing", "w1", b"1-1", 2)}
    assert (await claiming.left(), redis.failed) == ([], ["EVALSHA"])


@pytest.mark.anyio
async def test_what_is_claimed_and_runs_here_with_that_count_goes_on() -> None:
    claiming: Any = object.__new__(Claiming)
    source = Source("orders", "orders", inf, None)
    claiming._by_key = {b"orders": source}
    claiming._settings = WorkerSettings(stream="orders", group="billing")
    claiming._membership = a_membership()
    runs, moved = (Delivery(source, entry_id, (), 1, 3, 0, 0.0) for entry_id in (b"1-1", b"2-1"))
    source.hold([runs])
    source.hold([moved])

    async def send(_: Sequence[str | int]) -> Any:
        return [[b"orders", [[b"1-1", [], 0, 0], [b"2-1", [], CLAIM_READY_MS, 1]]]]

    held = await claiming.deliveries(send, 3.0)
    assert [one.raw_entry_id for one in held] == [b"2-1"]
    assert (source.holds(runs), runs.interruption, moved.interruption) == (True, None, Interruption.LOST)


@pytest.mark.anyio
async def test_nothing_is_read_or_taken_over_before_what_is_left() -> None:
    reader: Any = object.__new__(Reader)
    source, taken = Source("orders", "orders", inf, None), list[Delivery]()
    left = Delivery(source, b"1-1", (), 1, 3, 0, 0.0)

    async def tell() -> list[Delivery]:
        return [left]

    reader._claiming = SimpleNamespace(is_left=True, left=tell)
    reader._adoption = SimpleNamespace(is_due=True, take=pytest.fail, put_off=pytest.fail, take_stock=lambda: None)
    reader._membership, reader._stock_taken, reader._stalled = SimpleNamespace(joins=2, both=()), 1, None
    reader._reporter, reader._most = SimpleNamespace(works=lambda _: None, counts=SimpleNamespace(read=0)), inf
    reader._slots, reader._journal, reader._telemetry = SimpleNamespace(put=taken.extend, free=0), None, None
    assert not await reader._fill_slots(1)
    assert (taken, source.holds(left), reader._reporter.counts.read) == ([left], True, 1)
