"""A test that hangs is ended, in every kind of wait."""

import asyncio
import signal
import time
from contextlib import suppress

import anyio
import pytest

from tests.support.patience import Patience
from tests.support.watchdog import TestTookTooLong, Watch, watched

SOON = {"idle_s": 0.01, "look_every_s": 0.02}


def watch(idle_s: float = 100, longest_s: float = 1_000, **words: object) -> Watch:
    """Return a watch that begins at 0."""
    patience = Patience(0.0, longest_turn_s=10, busy=dict)
    patience.limit_s = idle_s  # however slow this machine is
    return Watch(0.0, patience, longest_s, **words)  # type: ignore[arg-type]


def end_of(watch: Watch) -> tuple[int, str]:
    """Return the time and the text of its complaint."""
    return next((now, complaint) for now in range(5, 100_000, 5) if (complaint := watch.complaint(now)))


def test_a_test_is_over_when_nothing_has_happened_for_too_long() -> None:
    assert end_of(watch(got=lambda: 7)) == (100, "nothing has happened in this test for 100 s")


def test_a_test_that_gets_what_it_waits_for_goes_on_up_to_a_far_end() -> None:
    news = iter(range(1_000))
    assert end_of(watch(got=lambda: next(news))) == (1_000, "the test took longer than 1000 s")


def test_a_test_begins_anew_with_all_that_it_gets() -> None:
    now = iter(range(5, 100_000, 5))
    assert end_of(watch(got=lambda: next(now) >= 60)) == (160, "nothing has happened in this test for 100 s")


def test_a_blocked_thread_is_woken() -> None:
    with pytest.raises(TestTookTooLong, match="nothing has happened in this test"), watched(**SOON):
        time.sleep(60)


def test_a_loop_that_waits_for_ever_is_ended() -> None:
    with pytest.raises(TestTookTooLong), watched(**SOON):
        anyio.run(asyncio.Event().wait)


def test_a_test_that_catches_everything_is_ended_too() -> None:
    def stubborn() -> None:
        while True:
            with suppress(Exception):
                time.sleep(0.01)

    with pytest.raises(TestTookTooLong), watched(**SOON):
        stubborn()


def test_a_test_that_only_computes_is_ended_too() -> None:
    def busy() -> None:
        while True:
            pass

    with pytest.raises(TestTookTooLong, match="longer than"), watched(longest_s=0.01, look_every_s=0.02):
        busy()


def test_after_the_block_the_watch_is_the_one_before() -> None:
    handler, (left_s, every_s) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with watched(look_every_s=60):
        assert signal.getitimer(signal.ITIMER_REAL)[1] == 60
        assert signal.getsignal(signal.SIGALRM) is not handler
    assert signal.getsignal(signal.SIGALRM) is handler
    after = signal.getitimer(signal.ITIMER_REAL)
    assert after[1] == every_s
    assert 0 < after[0] <= left_s + 1
