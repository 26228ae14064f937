"""Lets the product scan less often when no one waits: virtual time is free, but commands are not.

A worker asks every 2 seconds whether there is a job, and a replica registers every second. Timeouts of the simulation
are minutes long, so both may take longer, in proportion to them: an hour of a story
with long timeouts holds no more looks than some minutes of one with short ones. Nothing else is changed by it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from reaper import metrics
from reaper.recovery import group_watch, source_watch
from reaper.sharing import tenure
from tests.simulation.story import Setting
from workers.embedded import upkeep
from workers.loop import heartbeat, reading
from workers.protocol import connection
from workers.runtime import notices, pauses
from workers.upkeep import pace


def block_ms(setting: Setting) -> int:
    """Return how long a read blocks."""
    return round(setting.visibility_s / 3 * 1000)


def _unnamed() -> None:
    """Have connections not tell the server whose library they are of: two calls each, that nobody asks for."""


def _longer(setting: Setting) -> Iterator[tuple[Any, str, Any]]:
    """Yield what waits for how long: the module or function, the name there, and the value."""
    visibility_s = setting.visibility_s
    retry_s = visibility_s / 60
    yield tenure, "RETRY_S", (0.1, min(retry_s, setting.lease_s / 8))
    yield tenure, "UNABLE_S", retry_s
    yield pauses, "LONGEST_PAUSE_S", 2 * retry_s
    yield upkeep, "DECLINED_S", retry_s
    yield heartbeat, "LONGEST_SLEEP_S", retry_s
    yield reading, "ADOPTION_PAUSE_S", visibility_s / 12
    yield reading, "BLOCK_MS", block_ms(setting)
    yield connection.reader_client, "block_ms", block_ms(setting)
    yield connection, "_driver_info", _unnamed
    yield metrics, "HELD_POLL_S", visibility_s / 6
    yield notices, "PING_S", visibility_s
    yield notices, "RECONNECT_S", retry_s
    yield group_watch, "MOVE_RETRY_S", retry_s
    yield group_watch, "FULL_RETRY_S", retry_s
    yield source_watch, "RETRY_MS", round(retry_s * 1000)
    yield upkeep, "MAINTENANCE_INTERVAL_S", visibility_s / 2
    yield upkeep, "LATEST_LOOK_S", visibility_s / 2
    yield pace, "RELEASE_POLL_S", (0.02, visibility_s / 12)


@contextmanager
def patient(setting: Setting) -> Iterator[None]:
    """Look less often while the block runs."""
    with ExitStack() as stack:
        for where, name, value in _longer(setting):
            if callable(where):
                stack.enter_context(mock.patch.dict(where.__kwdefaults__, {name: value}))
            else:
                stack.enter_context(mock.patch.object(where, name, value))
        yield
