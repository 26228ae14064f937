"""Signals that a service takes in its event loop, for as long as it runs there."""

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio

from workers import forks


@contextmanager
def received(*numbers: signal.Signals) -> Iterator[AsyncIterator[signal.Signals]]:
    """Yield signals as they come; afterwards they do what they did before, which anyio would not have them do."""
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    noted = [number for number in numbers if forks.handles(number, before.get(number))]
    try:
        with anyio.open_signal_receiver(*numbers) as signals:
            yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in noted:
            forks.handles_no_more(number)
