"""Signals after the work of a program."""

import signal

import pytest

from workers.runtime.children import received

pytestmark = pytest.mark.anyio


async def test_after_a_service_signals_do_what_they_did_before() -> None:
    """Else SIGTERM during a worker's last exports kills it, and a program of a user's loses its handlers."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with received(signal.SIGTERM, signal.SIGHUP):
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
