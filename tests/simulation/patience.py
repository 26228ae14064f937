"""Has the product look less often at what nobody waits for: virtual time is free, but commands are not.

A worker asks every 2 seconds whether there is a job, and a replica looks ten times a second for answers that do not
come; visibility timeouts of the simulation are minutes long, so both may take longer by an order of
magnitude, and nothing else is changed by it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from reaper import metrics
from reaper.election import elector
from reaper.recovery import source_watch
from workers.loop import heartbeat, reading
from workers.protocol import connection
from workers.runtime import contact, notices
from workers.upkeep import schedules, suspects

BLOCK_MS = 20_000
LOOK_S = 4.0
"""How often it is looked for answers that do not come: trust windows are 14 s or longer here."""
_LONGER = (
    (elector, "LOOK_S", LOOK_S),
    (contact, "PAUSED_S", 3 * LOOK_S),
    (heartbeat, "LONGEST_SLEEP_S", 10.0),
    (reading, "BLOCK_MS", BLOCK_MS),
    (metrics, "LEADING_POLL_S", 10.0),
    (notices, "PING_S", 60.0),
    (schedules, "LATEST_LOOK_S", 30.0),
    (source_watch, "LATEST_WAKE_S", 30.0),
    (suspects, "POLL_S", (0.02, 5.0)),
)
_LONGER_DEFAULTS = (
    (contact.Contact.__init__, "look_s", LOOK_S),
    (connection.reader_client, "block_ms", BLOCK_MS),
)


@contextmanager
def patient() -> Iterator[None]:
    """Look less often while the block runs."""
    with ExitStack() as stack:
        for module, name, value in _LONGER:
            stack.enter_context(mock.patch.object(module, name, value))
        for function, name, value in _LONGER_DEFAULTS:
            stack.enter_context(mock.patch.dict(function.__kwdefaults__, {name: value}))
        yield
