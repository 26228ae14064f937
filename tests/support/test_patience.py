"""Patience ends when nothing happens, and neither because the machine is slow nor because it gave us no time."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import patience as module
from tests.support.patience import SLOWNESS, Patience, busy_times, measured, scaled, slowness
from tests.support.processes import ROOT, Processes
from tests.support.waiting import wait_until

PAUSE_S = 0.05


@pytest.fixture(autouse=True)
def _slowness(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits are as written here, on every machine."""
    monkeypatch.setenv(SLOWNESS, "1")
    slowness.cache_clear()
    yield
    slowness.cache_clear()


def idle() -> dict[int, float]:
    return {}


class Load:
    """Threads that have been busy for as long as a test says."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def __call__(self) -> Mapping[int, float]:
        return dict(self.times)


def seconds_until_over(left: Patience, turn_s: float = PAUSE_S, each_turn: Callable[[], object] = idle) -> float:
    """Take turns until patience is over; return how long that took."""
    turns = 0
    while not left.is_over((turns := turns + 1) * turn_s):
        each_turn()
        assert turns < 1_000_000, "it never ends"
    return turns * turn_s


def test_it_lasts_as_long_as_nothing_happens() -> None:
    assert seconds_until_over(Patience(0.0, 10, busy=idle)) == pytest.approx(10, abs=2 * PAUSE_S)


def test_a_limit_below_all_pauses_is_over_with_the_first_turn() -> None:
    assert not Patience(0.0, 0.01, busy=idle).is_over(0.001)
    assert Patience(0.0, 0.01, busy=idle).is_over(0.02)


def test_it_is_whole_again_whenever_something_is_new() -> None:
    left = Patience(0.0, 10, busy=idle)
    seen = [left.is_new(0.0, value) for value in ("a", "a", "b", None, None)]
    assert seen == [False, False, True, True, False], "the first look is at what was there before"
    for turn in range(1, 1_000):
        left.is_new(turn * PAUSE_S, turn // 100)  # something new every five seconds
        assert not left.is_over(turn * PAUSE_S)


def test_turns_that_the_machine_did_not_give_us_count_little() -> None:
    left = Patience(0.0, 10, busy=idle)
    assert not left.is_over(3_600.0), "it slept for an hour"
    assert left.idle_s <= 0.5
    assert seconds_until_over(Patience(0.0, 10, busy=idle), turn_s=60) == 20 * 60


def test_those_who_take_turns_seldom_may_say_so() -> None:
    assert seconds_until_over(Patience(0.0, 10, busy=idle, longest_turn_s=10), turn_s=5) == 10


def test_time_in_which_somebody_was_busy_counts_an_eighth() -> None:
    load = Load()

    def work() -> None:
        load.times[1] = load.times.get(1, 0.0) + PAUSE_S

    assert seconds_until_over(Patience(0.0, 10, busy=load), each_turn=work) == pytest.approx(80, abs=8)


def test_many_who_are_busy_are_not_more_than_all_the_time() -> None:
    load = Load()

    def work() -> None:
        for thread in range(100):
            load.times[thread] = load.times.get(thread, 0.0) + PAUSE_S

    assert seconds_until_over(Patience(0.0, 10, busy=load), each_turn=work) == pytest.approx(80, abs=8)


def test_heartbeats_hardly_prolong_it() -> None:
    load = Load()

    def work() -> None:
        load.times[1] = load.times.get(1, 0.0) + PAUSE_S / 20

    assert seconds_until_over(Patience(0.0, 10, busy=load), each_turn=work) == pytest.approx(10.5, abs=0.2)


def test_who_began_meanwhile_was_busy_and_who_has_ended_is_forgotten() -> None:
    load = Load()
    left = Patience(0.0, 100, busy=load, longest_turn_s=10)
    load.times = {1: 500.0}
    left.is_over(10.0)
    assert left.idle_s == 10, "nobody knows since when"
    load.times = {1: 500.0, 2: 4.0}
    left.is_over(20.0)
    assert left.idle_s == 10 + 6
    load.times = {2: 5.0}
    left.is_over(30.0)
    assert left.idle_s == 10 + 6 + 9


def test_nobody_is_looked_at_by_those_who_wait_shortly() -> None:
    def expensive() -> dict[int, float]:
        raise AssertionError("looked")

    left = Patience(0.0, 10, busy=expensive)
    assert not any(left.is_over(turn * PAUSE_S) for turn in range(1, 20))


# --- how slow the machine is --------------------------------------------------------------------------------


def test_a_machine_is_measured_by_the_median_of_what_its_rounds_take() -> None:
    now = 0.0
    rounds = iter([0.08, 0.05, 9.0, 0.05, 0.05, 0.08, 0.08, 0.08, 0.01])

    def work() -> None:
        nonlocal now
        now += next(rounds)

    assert measured(work, lambda: now, reference_s=0.02) == 4.0
    assert next(rounds, None) is None


@pytest.mark.parametrize(("round_s", "factor"), [(0.001, 1.0), (0.02, 1.0), (0.05, 2.5), (100.0, 20.0)])
def test_no_machine_is_faster_than_the_reference_nor_endlessly_slow(round_s: float, factor: float) -> None:
    now = 0.0

    def work() -> None:
        nonlocal now
        now += round_s

    assert measured(work, lambda: now, reference_s=0.02) == factor


def test_what_was_measured_first_holds_for_all_processes_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWNESS, "3.5")
    slowness.cache_clear()
    assert (slowness(), scaled(2)) == (3.5, 7.0)
    assert Patience(0.0, 10, busy=idle).limit_s == 35
    program = "from tests.support.patience import slowness; print(slowness())"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout == "3.5\n"


def test_without_a_word_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOWNESS)
    monkeypatch.setattr(module, "measured", lambda: 2.5)
    slowness.cache_clear()
    assert slowness() == 2.5


def test_a_round_is_over_at_once() -> None:
    assert 1 <= measured() <= 20


# --- processes of the test --------------------------------------------------------------------------------

_BUSY = "while True: pass"
_GRANDCHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BUSY!r}])"

needs_proc = pytest.mark.skipif(not busy_times(), reason="this kernel does not tell who is busy")


@needs_proc
@pytest.mark.anyio
async def test_a_process_is_busy_that_one_of_ours_has_started(processes: Processes) -> None:
    before = sum(busy_times().values())
    processes.python("-c", _GRANDCHILD)
    await wait_until(lambda: sum(busy_times().values()) - before > 0.5, "the grandchild is busy")


@needs_proc
@pytest.mark.anyio
async def test_a_process_that_waits_is_not_busy(processes: Processes) -> None:
    sleeping = processes.start("sleep", "60")
    stat = Path(f"/proc/{sleeping.pid}/stat")
    await wait_until(lambda: "(sleep) S" in stat.read_text(encoding="ascii"), "it sleeps")
    before = sum(busy_times(sleeping.pid).values())
    working = processes.python("-c", _BUSY)
    await wait_until(lambda: sum(busy_times(working.pid).values()) > 0.5, "the other one was busy for half a second")
    assert sum(busy_times(sleeping.pid).values()) - before < 0.1


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    assert busy_times(2**22 + 1) == {}
