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

from workers.testing.drain import DeadLetter as DeadLetter
from workers.testing.drain import Drained as Drained
from workers.testing.drain import DrainWorker as DrainWorker
from workers.testing.drain import DrainWorkerAsync as DrainWorkerAsync
from workers.testing.drain import NotDrainedError as NotDrainedError
from workers.testing.drain import run_until_drained as run_until_drained
from workers.testing.drain import run_until_drained_async as run_until_drained_async
from workers.testing.handlers import Acknowledged as Acknowledged
from workers.testing.handlers import Failed as Failed
from workers.testing.handlers import Rejected as Rejected
from workers.testing.handlers import Result as Result
from workers.testing.handlers import Retried as Retried
from workers.testing.handlers import TimedOut as TimedOut
from workers.testing.handlers import run_handler as run_handler
from workers.testing.handlers import run_handler_async as run_handler_async
from workers.testing.server import NoServerError as NoServerError
from workers.testing.server import RedisServer as RedisServer
