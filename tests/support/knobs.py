"""Lets workers look and extend at once although no delivery falls due for an hour.

With a visibility timeout of an hour, a busy machine does not change the outcome. But a worker extends every quarter of
it, and looks for stalled deliveries once in it. Recovery waits for an hour after the first heartbeat
(`tests.support.beats`).
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from unittest import mock

from workers.embedded.autoclaim import Autoclaim
from workers.loop import membership, reading, slots
from workers.loop.heartbeat import Heartbeat

OFTEN_S = 0.1
HURRY = {"HURRY": "1"}
"""In the environment of a program that calls `hurry_if_asked`."""
REFRESHING = {"REFRESH_S": "0.5"}
"""The same, for a program whose worker reads the group settings so often."""


class Set(Protocol):
    """``setattr``, or a fixture's that undoes it."""

    def __call__(self, target: object, name: str, value: object, /) -> None:
        """Set the attribute."""


def hurry(set_: Set = setattr) -> None:
    """Let the workers of this process extend and look every tenth of a second."""

    def soon(_: Autoclaim, began: float) -> float:
        return began + OFTEN_S

    def often(_: Heartbeat) -> float:
        return OFTEN_S

    set_(Autoclaim, "_next_scan_at", soon)
    set_(Heartbeat, "_period_s", often)


@contextmanager
def refreshing(every_s: float | None) -> Iterator[None]:
    """Let the workers of this process read the group settings so often while the block runs; None = as ever."""
    if every_s is None:
        yield
        return
    with mock.patch.object(membership, "REFRESH_S", every_s):
        yield


def stop_soon() -> None:
    """Let workers of this program read briefly, and wait briefly for cancelled handlers: a stop waits for both.

    A test that imports the program only for its lists keeps its own values.
    """
    if "pytest" in sys.modules:
        return
    reading.BLOCK_MS = 100  # type: ignore[attr-defined]  # as the reader knows it
    slots.CANCELLED_END_S = 0.2


def hurry_if_asked() -> None:
    """Do so where the environment says it."""
    if "HURRY" in os.environ:
        hurry()
    if "REFRESH_S" in os.environ:
        membership.REFRESH_S = float(os.environ["REFRESH_S"])
