import pytest

from tests.workers.scene import KEYS
from workers.loop.in_flight import Source
from workers.loop.reading import Planner

MAIN = Source(KEYS.stream, KEYS.stream)
RETRIES = Source(KEYS.retry, KEYS.stream)
BOTH = (MAIN, RETRIES)


def read(planner: Planner, free: int, *, main: int = 0, retries: int = 0) -> tuple[tuple[Source, ...], int]:
    """Plan a read of both that finds as many as there are, at most."""
    sources, count = planner.plan(BOTH, free)
    there = {MAIN.key: main, RETRIES.key: retries}
    planner.learn(sum(min(count, there[source.key]) for source in sources))
    return sources, count


def test_a_stream_without_retries_is_read_for_all_free_slots() -> None:
    assert [Planner().plan((MAIN,), free) for free in (64, 1)] == [((MAIN,), 64), ((MAIN,), 1)]


@pytest.mark.parametrize("free", [2, 3, 63, 64])
def test_both_streams_together_are_never_asked_for_more_than_the_free_slots(free: int) -> None:
    sources, count = Planner().plan(BOTH, free)
    assert sources == BOTH
    assert free - 1 <= count * len(sources) <= free


def test_one_free_slot_asks_in_turn_and_waits_for_both_only_where_both_are_empty() -> None:
    planner = Planner()

    plans = [read(planner, 1) for _ in range(4)]

    ask_retries, ask_main = ((RETRIES,), 1), ((MAIN,), 1)
    assert plans == [ask_retries, ask_main, (BOTH, 1), (BOTH, 1)]
    assert [read(planner, 1, main=1) for _ in range(2)] == [(BOTH, 1), ask_retries]


def test_one_free_slot_starves_neither_stream() -> None:
    planner = Planner()

    plans = [read(planner, 1, main=1_000, retries=1_000) for _ in range(4)]

    assert [sources for sources, _ in plans] == [(RETRIES,), (MAIN,), (RETRIES,), (MAIN,)]


def test_one_free_slot_is_not_filled_twice_where_reads_of_both_found_jobs_before() -> None:
    planner = Planner()

    read(planner, 64, main=1_000)

    assert read(planner, 1, main=1_000, retries=1_000) == ((RETRIES,), 1)
