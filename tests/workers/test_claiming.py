"""The claims of a worker, and their times.

While a reaper serves the group, it claims only deliveries laid aside for readers.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from workers.loop.claiming import SELF_RECOVERY_LEAST_MS, Claiming, claim_idle_ms
from workers.loop.held import Held, Interruption, Source
from workers.loop.reading import Reader
from workers.loop.stalled import StalledDeliveries
from workers.protocol.calls.membership import Agreement
from workers.protocol.errors import UnexpectedReplyError
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


@pytest.mark.parametrize("redelivery", [Redelivery.STREAM, Redelivery.RETRY_STREAM])
def test_where_jobs_are_copied_nothing_is_claimed(redelivery: Redelivery) -> None:
    assert claim_idle_ms(agreement(redelivery, 30), 10**6) is None


@pytest.mark.parametrize(
    ("visibility_s", "unserved_s", "idle_ms"),
    [
        (30, 0, CLAIM_READY_MS),
        (30, 29.9, CLAIM_READY_MS),
        (30, 30, SELF_RECOVERY_LEAST_MS),
        (600, 600, 6_000_000),
        (600, 599, CLAIM_READY_MS),
    ],
)
def test_what_stalls_is_claimed_late_and_only_where_no_leader_has_been_for_a_visibility_timeout(
    visibility_s: float, unserved_s: float, idle_ms: int
) -> None:
    assert claim_idle_ms(agreement(Redelivery.IN_PLACE, visibility_s), unserved_s) == idle_ms


def test_embedded_workers_recover_by_themselves_and_claim_only_what_was_laid_aside() -> None:
    assert claim_idle_ms(agreement(Redelivery.IN_PLACE, 30, RecoveryMode.EMBEDDED), 10**6) == CLAIM_READY_MS


def test_a_reply_tells_how_often_each_entry_was_delivered() -> None:
    reply = [[b"orders", [[b"1-1", [b"n", b"1"], 4_000_000_000, 2], [b"2-1", [b"n", b"2"], 0, 0]]]]
    assert parse_claim_reply(reply) == [
        ClaimedEntry(b"orders", b"1-1", [b"n", b"1"], 4_000_000_000, 2),
        ClaimedEntry(b"orders", b"2-1", [b"n", b"2"], 0, 0),
    ]
    assert parse_claim_reply(None) == []
    with pytest.raises(UnexpectedReplyError, match="CLAIM answered"):
        parse_claim_reply([[b"orders", [[b"1-1", [b"n", b"1"]]]]])


class NothingNoted:
    """A Redis without notes of jobs. Its clock shows ``now_ms``."""

    now_ms = 1_700_000_000_000
    settings: Mapping[str, bytes] = MappingProxyType({})
    """The group settings."""

    async def execute_command(self, command: str, *words: Any) -> Any:
        if command == "TIME":
            return self.now_ms // 1000, self.now_ms % 1000 * 1000
        key, *names = words
        return [self.settings.get(name) if ":group:" in key else None for name in names]

    def pipeline(self, *, transaction: bool) -> "Together":
        assert not transaction
        return Together(self)


class Together:
    """A pipeline to it. The first error is raised."""

    def __init__(self, redis: NothingNoted) -> None:
        self._redis = redis
        self._asked: list[Sequence[Any]] = []

    def execute_command(self, *words: Any) -> None:
        self._asked.append(words)

    async def execute(self) -> list[Any]:
        return [await self._redis.execute_command(*words) for words in self._asked]


def a_membership(**more: Any) -> SimpleNamespace:
    """As far as claiming knows it."""
    known = {
        "agreement": agreement(Redelivery.IN_PLACE, 30),
        "now_ms": lambda: 0,
        "set_clock": lambda _now, _asked: None,
    }
    return SimpleNamespace(**known | more)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("entry_idle_ms", "before", "is_used_up"),
    [
        (0, 0, False),
        (700_000, 2, False),
        (700_000, 3, True),
        (CLAIM_READY_MS, 3, False),
        (4 * CLAIM_READY_MS, 9, False),
    ],
)
async def test_only_what_nobody_has_judged_is_given_up_unrun(entry_idle_ms: int, before: int, is_used_up: bool) -> None:
    """A delivery that was laid aside has to run, also after the limit was lowered, because its worker did not fail."""
    claiming: Any = object.__new__(Claiming)
    source = Source("orders", "orders", inf, None)
    claiming._by_key, claiming._commands = {b"orders": source}, NothingNoted()
    claiming._settings = WorkerSettings(stream="orders", group="billing")
    claiming._membership = a_membership()

    async def send(more: Sequence[str | int]) -> Any:
        assert more == ("CLAIM", 600_000)
        return [[b"orders", [[b"1-1", [b"n", b"1"], entry_idle_ms, before]]]]

    (held,) = await claiming.deliveries(send, 600_000, 0.0)
    assert (held.job.deliveries, held.is_used_up) == (before + 1, is_used_up)


class Returning(NothingNoted):
    """A Redis in which no job has a note, and which records the returned deliveries."""

    def __init__(self) -> None:
        self.returned: list[object] = []

    async def execute_command(self, command: str, *words: Any) -> Any:
        if command != "EVALSHA":
            return await super().execute_command(command, *words)
        self.returned.append(words[3:])
        return 1


@pytest.mark.anyio
async def test_what_was_taken_from_the_living_is_given_back_and_not_run() -> None:
    """After the server's clock was set back, a delivery of the future looks idle for longer than any limit."""
    claiming: Any = object.__new__(Claiming)
    source, asked, redis = Source("orders", "orders", inf, None), list[str](), Returning()
    claiming._by_key, claiming._commands, claiming._consumer = {b"orders": source}, redis, "w1"
    claiming._settings = WorkerSettings(stream="orders", group="billing")
    claiming._membership = a_membership(both=(source,), join_again=lambda: asked.append(""))

    async def send(_: Sequence[str | int]) -> Any:
        rows = [[b"1-1", [b"n", b"1"], -1, 2], [b"2-1", [b"n", b"2"], 4 * CLAIM_READY_MS, 1], [b"3-1", [], 0, 0]]
        return [[b"orders", rows]]

    held = await claiming.deliveries(send, CLAIM_READY_MS, 0.0)
    assert [one.job.raw_entry_id for one in held] == [b"2-1", b"3-1"]
    assert redis.returned == [("billing", "w1", b"1-1", 2)]
    assert asked == [""], "the word is dated by the clock as it was"


@pytest.mark.anyio
@pytest.mark.parametrize(("beat_ago_ms", "returned"), [(3_600_000, [b"1-1"]), (1_000, [])], ids=["a gap", "no gap"])
async def test_after_a_gap_what_a_read_took_without_a_leader_is_given_back_and_not_run(
    beat_ago_ms: int, returned: list[bytes]
) -> None:
    """After an outage, or a step of the clock, the server takes all deliveries in hand for long idle."""
    claiming: Any = object.__new__(Claiming)
    source, redis = Source("orders", "orders", inf, None), Returning()
    beat = redis.now_ms - beat_ago_ms
    redis.settings = {"visibility_ms": b"30000", "beat": b"%d" % beat, "unbroken": b"1"}
    claiming._by_key, claiming._commands, claiming._consumer = {b"orders": source}, redis, "w1"
    claiming._settings = WorkerSettings(stream="orders", group="billing")
    claiming._membership = a_membership(both=(source,), join_again=lambda: None)

    async def send(_: Sequence[str | int]) -> Any:
        rows = [[b"1-1", [], 3_620_000, 1], [b"2-1", [], 4 * CLAIM_READY_MS, 1], [b"3-1", [], 0, 0]]
        return [[b"orders", rows]]

    held = await claiming.deliveries(send, SELF_RECOVERY_LEAST_MS, 0.0)
    assert {one.job.raw_entry_id for one in held} == {b"1-1", b"2-1", b"3-1"} - {*returned}
    assert redis.returned == [("billing", "w1", one, 1) for one in returned]


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
    claiming._settings, claiming._answer = WorkerSettings(stream="orders", group="billing"), None
    claiming._membership = a_membership(both=(source,), join_again=lambda: None)

    async def send(_: Sequence[str | int]) -> Any:
        return [[b"orders", [[b"1-1", [], -1, 2], [b"2-1", [], 4 * CLAIM_READY_MS, 1]]]]

    assert (await claiming.left(), claiming.is_left) == ([], False)
    with pytest.raises(RedisConnectionError):
        await claiming.deliveries(send, CLAIM_READY_MS, 3.0)
    assert (claiming.is_left, redis.returned) == (True, [])
    while claiming.is_left:
        with suppress(RedisConnectionError):
            held = await claiming.left()
    assert [(one.job.raw_entry_id, one.proven) for one in held] == [(b"2-1", 3.0)]
    assert set(redis.returned) == {("billing", "w1", b"1-1", 2)}
    assert (await claiming.left(), redis.failed) == ([], ["HMGET", "TIME", "EVALSHA"])


@pytest.mark.anyio
async def test_what_is_claimed_and_runs_here_with_that_count_goes_on() -> None:
    claiming: Any = object.__new__(Claiming)
    source = Source("orders", "orders", inf, None)
    claiming._by_key, claiming._commands = {b"orders": source}, NothingNoted()
    claiming._settings = WorkerSettings(stream="orders", group="billing")
    claiming._membership = a_membership()
    runs, moved = (Held(source, entry_id, (), 1, 3, 0, 0.0) for entry_id in (b"1-1", b"2-1"))
    source.hold(runs)
    source.hold(moved)

    async def send(_: Sequence[str | int]) -> Any:
        return [[b"orders", [[b"1-1", [], 0, 0], [b"2-1", [], CLAIM_READY_MS, 1]]]]

    held = await claiming.deliveries(send, 2 * CLAIM_READY_MS, 3.0)
    assert [one.job.raw_entry_id for one in held] == [b"2-1"]
    assert (source.holds(runs), runs.interruption, moved.interruption) == (True, None, Interruption.LOST)


@pytest.mark.anyio
async def test_nothing_is_read_or_taken_over_before_what_is_left() -> None:
    reader: Any = object.__new__(Reader)
    source, taken = Source("orders", "orders", inf, None), list[Held]()
    left = Held(source, b"1-1", (), 1, 3, 0, 0.0)

    async def tell() -> list[Held]:
        return [left]

    reader._claiming = SimpleNamespace(is_left=True, left=tell)
    reader._adoption = SimpleNamespace(is_due=True, take=pytest.fail, put_off=pytest.fail, take_stock=lambda: None)
    reader._membership, reader._stock_taken, reader._stalled = SimpleNamespace(joins=2, both=()), 1, StalledDeliveries()
    reader._reporter, reader._most = SimpleNamespace(works=lambda _: None, counts=SimpleNamespace(read=0)), inf
    reader._slots, reader._journal, reader._telemetry = SimpleNamespace(put=taken.extend, free=0), None, None
    assert not await reader._fill_slots(1)
    assert (taken, source.holds(left), reader._reporter.counts.read) == ([left], True, 1)
