"""A user's program whose jobs block the event loop until a file is there."""

import os
import time
from pathlib import Path

from workers import Job, Worker
from workers.runtime import health_server

RELEASE = Path(os.environ.get("RELEASED_BY", "released"))
worker = Worker("orders", "billing")
health_server.LIVENESS_TIMEOUT_S = 1.5


@worker.handler
async def block(_job: Job) -> None:
    """Block, which an ``async`` handler must not do for long: that is what is tested."""
    while not RELEASE.exists():  # noqa: ASYNC240 - see above
        time.sleep(0.05)  # noqa: ASYNC251 - see above
