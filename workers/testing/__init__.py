"""What users test their handlers and workers with. It has no part in what runs in production.

::

    from workers.testing import Acknowledged, run_handler

    def test_an_order_is_billed() -> None:
        assert run_handler(bill, {"order": 17}) == Acknowledged()

`run_handler` runs one handler on one made-up job, without Redis. `run_until_drained` runs a whole worker on a Redis of
the tests' own, a fixture of `workers.testing.plugin`. Both also for tests that are ``async def``: `run_handler_async`,
`run_until_drained_async`. What they promise: a handler is executed and judged by the code that a worker runs, and the
environment (``REAPER_…``) has no say. What they do not: settlements that are refused, crashes, outages.
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
