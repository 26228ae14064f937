"""A test that hangs is ended, whatever it hangs in."""

import asyncio
import signal
import time
from contextlib import suppress

import anyio
import pytest

from tests.support.watchdog import TestTookTooLong, watched


def test_a_blocked_thread_is_woken() -> None:
    with pytest.raises(TestTookTooLong, match=r"longer than 0\.05 s"), watched(0.05):
        time.sleep(60)


def test_a_loop_that_waits_for_ever_is_ended() -> None:
    with pytest.raises(TestTookTooLong), watched(0.05):
        anyio.run(asyncio.Event().wait)


def test_a_test_that_catches_everything_is_ended_too() -> None:
    def stubborn() -> None:
        while True:
            with suppress(Exception):
                time.sleep(0.01)

    with pytest.raises(TestTookTooLong), watched(0.05):
        stubborn()


def test_after_the_block_nothing_is_watched() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with watched(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
