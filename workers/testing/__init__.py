"""Tools to test handlers and workers. Production code does not need them.

::

    from workers.testing import Acknowledged, run_handler

    def test_an_order_is_billed() -> None:
        assert run_handler(bill, {"order": 17}) == Acknowledged()

`run_handler` runs one handler with one job, without Redis. `run_until_drained` runs a whole worker on a Redis of the
tests, a fixture of `workers.testing.plugin`. Tests that are ``async def`` use `run_handler_async` and
`run_until_drained_async`. They run the code of a real worker, and ignore ``REAPER_…`` variables. They do not simulate
rejected settlements, crashes and outages.
"""

from workers.testing.drain import (
    DeadLetter,
    Drained,
    DrainWorker,
    DrainWorkerAsync,
    NotDrainedError,
    run_until_drained,
    run_until_drained_async,
)
from workers.testing.handlers import (
    Acknowledged,
    Failed,
    Rejected,
    Result,
    Retried,
    TimedOut,
    run_handler,
    run_handler_async,
)
from workers.testing.server import NoServerError, RedisServer

__all__ = [
    "Acknowledged",
    "DeadLetter",
    "DrainWorker",
    "DrainWorkerAsync",
    "Drained",
    "Failed",
    "NoServerError",
    "NotDrainedError",
    "RedisServer",
    "Rejected",
    "Result",
    "Retried",
    "TimedOut",
    "run_handler",
    "run_handler_async",
    "run_until_drained",
    "run_until_drained_async",
]
