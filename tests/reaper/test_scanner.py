"""The scan: which pages it asks for, and which timers it leaves behind."""

from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from reaper.recovery.scanner import LAST_ID, Scanner
from reaper.recovery.timers import BUCKET_MS, Timers
from tests.scripts.scene import Scene, entry_id
from workers.runtime.clock import monotonic_ms

pytestmark = pytest.mark.anyio

VISIBILITY_MS = 30_000 * 256
PAGE = 10


class Watched:
    """A scanner on the scene's group, the pages it asked for, and how often it said that timers were armed."""

    def __init__(self, client: Any) -> None:
        self.timers = Timers()
        self.asked_from: list[str] = []
        self.armed = 0
        self.fails_at_page: int | None = None
        self._client = client
        self.scanner = Scanner(
            client=self,  # type: ignore[arg-type]
            source="orders",
            group="billing",
            visibility_ms=VISIBILITY_MS,
            page=PAGE,
            timers=self.timers,
            armed=self._count,
        )

    def _count(self) -> None:
        self.armed += 1

    async def execute_command(self, *words: Any) -> Any:
        """Pass a command on, and note where the page starts."""
        self.asked_from.append(words[3].decode())
        if len(self.asked_from) == self.fails_at_page:
            raise RedisConnectionError("cut")
        return await self._client.execute_command(*words)

    async def tick(self) -> int:
        """Read the page behind the highest ID that was seen. Return the number of rows."""
        rows = await self.execute_command("XPENDING", "orders", "billing", self.scanner.after, "+", PAGE)
        self.scanner.saw(rows)
        return len(rows)

    def armed_ids(self) -> list[str]:
        return sorted(one.decode() for one in self.timers._by_id)

    def pop_due(self) -> list[str]:
        return sorted(one.decode() for one in self.timers.pop_due(monotonic_ms() + BUCKET_MS, 1_000))


class Rows:
    """Answers with rows that no supported server has."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self._rows = rows

    async def execute_command(self, *_words: Any) -> Any:
        return self._rows


@pytest.fixture
async def scene(client: Redis) -> Scene:
    prepared = Scene(client)
    await prepared.prepare()
    return prepared


@pytest.fixture
def watched(client: Redis) -> Watched:
    return Watched(client)


async def deliver_next(scene: Scene, count: int, idle_ms: int = 0) -> list[str]:
    added = [await scene.add() for _ in range(count)]
    await scene.deliver(*added, idle_ms=idle_ms)
    return added


async def test_every_pending_delivery_gets_a_timer_for_what_is_left_of_its_time(scene: Scene, watched: Watched) -> None:
    began = monotonic_ms()
    await deliver_next(scene, 3, idle_ms=10_000)
    result = await watched.scanner.full()
    left = VISIBILITY_MS - 10_000
    next_due = watched.timers.next_due()
    assert (result, watched.armed_ids()) == (3, [entry_id(n) for n in (1, 2, 3)])
    assert next_due is not None
    # The server counts idle time from some moment of the test on.
    assert began + left - BUCKET_MS <= next_due <= monotonic_ms() + left + BUCKET_MS


async def test_what_is_overdue_is_due_now_and_the_rest_later(scene: Scene, watched: Watched) -> None:
    overdue = await deliver_next(scene, 2, idle_ms=VISIBILITY_MS)
    fresh = await deliver_next(scene, 2, idle_ms=1_000)
    await watched.scanner.full()
    assert (watched.pop_due(), watched.armed_ids()) == (overdue, fresh)


@pytest.mark.parametrize(
    ("pending", "asked_from"),
    [
        (PAGE - 1, ["-"]),
        (PAGE, ["-", "(" + entry_id(PAGE)]),
        (2 * PAGE + 1, ["-", "(" + entry_id(PAGE), "(" + entry_id(2 * PAGE)]),
    ],
    ids=["a short page is the last", "a full page may not be", "three pages"],
)
async def test_each_page_begins_behind_the_last_one(
    scene: Scene, watched: Watched, pending: int, asked_from: list[str]
) -> None:
    added = await deliver_next(scene, pending)
    assert await watched.scanner.full() == pending
    assert (watched.asked_from, watched.armed_ids()) == (asked_from, added)


async def test_a_tick_reads_only_what_lies_past_the_highest_id_seen(scene: Scene, watched: Watched) -> None:
    await deliver_next(scene, 3)
    await watched.scanner.full()
    watched.asked_from.clear()
    await deliver_next(scene, 2)
    assert [await watched.tick() for _ in range(2)] == [2, 0]
    assert watched.asked_from == ["(" + entry_id(3), "(" + entry_id(5)]


async def test_a_tick_keeps_the_timers_of_what_was_settled(scene: Scene, watched: Watched) -> None:
    settled, *_ = added = await deliver_next(scene, 3)
    await watched.scanner.full()
    await scene.client.xack("orders", "billing", settled)
    await watched.tick()
    assert watched.armed_ids() == added


async def test_a_full_scan_forgets_what_was_settled(scene: Scene, watched: Watched) -> None:
    settled, *left = await deliver_next(scene, 3)
    await watched.scanner.full()
    await scene.client.xack("orders", "billing", settled)
    await watched.scanner.full()
    assert watched.armed_ids() == left


async def test_a_full_scan_finds_old_ids_that_came_back(scene: Scene, watched: Watched) -> None:
    old = await scene.add()
    newer = await deliver_next(scene, 2)
    await watched.scanner.full()
    await scene.deliver(old)  # XCLAIM FORCE
    await watched.tick()
    assert watched.armed_ids() == newer
    await watched.scanner.full()
    assert watched.armed_ids() == [old, *newer]


async def test_a_delivery_that_was_extended_moves_its_timer_at_the_next_full_scan(
    scene: Scene, watched: Watched
) -> None:
    (extended,) = await deliver_next(scene, 1, idle_ms=VISIBILITY_MS)
    await watched.scanner.full()
    await scene.deliver(extended, idle_ms=1_000)
    await watched.scanner.full()
    assert (watched.pop_due(), watched.armed_ids()) == ([], [extended])


async def test_without_an_idle_time_a_timer_stays_and_a_new_one_is_due_at_once() -> None:
    """After a step back of its clock, the server reports 0 for older deliveries, until the clock has caught up.

    The script restarts the idle time, so it is asked at once.
    """
    rows = [[b"1-0", b"alice", VISIBILITY_MS - 1_000, 1]]
    watched = Watched(Rows(rows))
    await watched.scanner.full()
    due = watched.timers.next_due()
    rows[:] = [[b"1-0", b"alice", 0, 1], [b"2-0", b"alice", 0, 1]]
    await watched.scanner.full()
    assert watched.pop_due() == ["2-0"]
    assert watched.timers.next_due() == due


async def test_a_full_scan_that_fails_forgets_nothing(scene: Scene, watched: Watched) -> None:
    settled, *_ = added = await deliver_next(scene, 2 * PAGE)
    await watched.scanner.full()
    await scene.client.xack("orders", "billing", settled)
    watched.fails_at_page = len(watched.asked_from) + 2
    with pytest.raises(RedisConnectionError, match="cut"):
        await watched.scanner.full()
    assert watched.armed_ids() == added


async def test_the_full_scan_after_a_failed_one_starts_over_and_forgets(scene: Scene, watched: Watched) -> None:
    settled, *left = await deliver_next(scene, 2 * PAGE)
    watched.fails_at_page = 2
    with pytest.raises(RedisConnectionError, match="cut"):
        await watched.scanner.full()
    await scene.client.xack("orders", "billing", settled)
    assert await watched.scanner.full() == len(left)
    assert watched.armed_ids() == left


# ---- ages


async def test_what_was_recovered_while_a_page_was_on_its_way_is_not_watched_again(
    scene: Scene, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await scene.stalled(), await scene.stalled()
    saw = Scanner.saw

    def see_late(scanner: Scanner, rows: Sequence[Any]) -> None:
        scanner.recovered([one.encode()])
        saw(scanner, rows)

    monkeypatch.setattr(Scanner, "saw", see_late)
    assert await watched.scanner.full() == 2
    assert watched.armed_ids() == [two]
    monkeypatch.undo()
    await watched.scanner.full()
    assert watched.armed_ids() == sorted([one, two]), "the next page shows how it is"


async def test_what_nobody_held_was_dropped_with_no_consumer() -> None:
    """An entry that a worker released by XNACK (Redis 8.8) and another one settled is not lost."""
    rows = [[b"1-1", b"", -1, 2], [b"2-1", b"w1", 5, 1]]
    watched = Watched(Rows(rows))
    await watched.scanner.full()
    rows.clear()
    for _ in range(2):
        await watched.scanner.full()
    assert watched.scanner.gone_by_consumer() == {b"w1": [b"2-1"]}


async def test_scans_that_fail_again_and_again_remember_each_entry_once() -> None:
    """Redis may deny a part of every scan, so it is never known which deliveries were lost."""
    rows = [[b"1-1", b"w1", 5, 1], [b"2-1", b"w2", 5, 1], [b"3-1", b"w2", 5, 1]]
    watched = Watched(Rows(rows))
    for _ in range(3):
        await watched.scanner.full()
    del rows[1]
    for _ in range(3):
        await watched.scanner.full()
    held = {consumer: bytes(ids) for consumer, ids in watched.scanner._held_before.items()}
    assert held == {b"w1": b"1-1 ", b"w2": b"2-1 3-1 "}
    assert watched.scanner.gone_by_consumer() == {b"w2": [b"2-1"]}


@pytest.mark.parametrize(("ready", "due"), [(False, ["1-1"]), (True, [])])
async def test_what_nobody_holds_is_due_at_once_unless_it_is_ready_where_it_is(ready: bool, due: list[str]) -> None:
    watched = Watched(Rows([[b"1-1", b"", -1, 2]]))
    watched.scanner.in_place = ready
    await watched.scanner.full()
    assert watched.armed_ids() == ["1-1"]
    assert watched.pop_due() == due


async def test_the_last_id_of_all_hides_nothing_because_no_range_begins_behind_it(
    scene: Scene, watched: Watched
) -> None:
    last = LAST_ID.decode()
    await scene.add(at=last)
    await scene.deliver(last)
    assert await watched.scanner.full() == 1
    assert await watched.tick() == 1
    assert watched.armed_ids() == [last]
