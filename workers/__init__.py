"""Read jobs from Redis Streams, execute them and settle them. It works without the reaper.

::

    from workers import Job, Worker

    worker = Worker("orders", "billing")

    @worker.handler
    async def handle(job: Job) -> None:
        ...

Run it with ``worker run module:worker``, or with ``await worker.run()`` inside a program. If a handler returns, its job
is acknowledged. If it raises, the job is ready again after a backoff, and a dead letter after `max_deliveries`. `Retry`
and `Reject` choose an outcome on purpose. `Producer` and `SyncProducer` enqueue jobs.

A name is imported when you first use it (PEP 562), because `workers.protocol.keys` and similar modules need only the
standard library. Type checkers read the imports, and programs read the table below them. A test compares the two. Type
checkers must not see ``__getattr__``, because it would hide misspelled names.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.loop.execution import Reject as Reject
    from workers.loop.execution import Retry as Retry
    from workers.loop.job import Job as Job
    from workers.loop.reporting import Counts as Counts
    from workers.loop.reporting import WorkerEvent as WorkerEvent
    from workers.new_jobs import NewJob as NewJob
    from workers.outbox import JobId as JobId
    from workers.producer import Producer as Producer
    from workers.protocol.errors import ConfigurationError as ConfigurationError
    from workers.protocol.errors import HandlerExitError as HandlerExitError
    from workers.protocol.errors import InvalidFieldError as InvalidFieldError
    from workers.protocol.errors import InvalidJobError as InvalidJobError
    from workers.protocol.errors import StreamReaperError as StreamReaperError
    from workers.protocol.errors import UnreachableError as UnreachableError
    from workers.protocol.errors import UnsupportedServerError as UnsupportedServerError
    from workers.protocol.messages import RecoveryMode as RecoveryMode
    from workers.protocol.messages import Redelivery as Redelivery
    from workers.runtime.callbacks import Report as Report
    from workers.settings import WorkerSettings as WorkerSettings
    from workers.sync_producer import SyncProducer as SyncProducer
    from workers.worker import Worker as Worker
else:
    _NAMES = {
        "workers.loop.execution": "Reject Retry",
        "workers.loop.job": "Job",
        "workers.loop.reporting": "Counts WorkerEvent",
        "workers.new_jobs": "NewJob",
        "workers.outbox": "JobId",
        "workers.producer": "Producer",
        "workers.protocol.messages": "RecoveryMode Redelivery",
        "workers.runtime.callbacks": "Report",
        "workers.settings": "WorkerSettings",
        "workers.sync_producer": "SyncProducer",
        "workers.worker": "Worker",
        "workers.protocol.errors": "ConfigurationError HandlerExitError InvalidFieldError InvalidJobError "
        "StreamReaperError UnreachableError UnsupportedServerError",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> object:
        """Import a name of the public API at its first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})  # Python also looks here to suggest a name for a misspelt one
