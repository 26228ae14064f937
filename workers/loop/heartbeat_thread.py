"""Carries out a heartbeat beside the event loop: a thread, over a blocking connection of its own.

`Heartbeat.steps` decides, and knows neither threads nor connections. This module carries out its steps, and returns the
results to it. The simulation carries out the same steps in its event loop, with virtual time.
"""

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio
from anyio import to_thread
from redis.exceptions import RedisError

from workers.loop.in_flight import Source
from workers.protocol.calls.moves import HeartbeatAnswer, HeartbeatEntry, Moves
from workers.protocol.connection import blocking_client
from workers.protocol.log_fields import fields
from workers.protocol.meaning import is_contact_error

logger = logging.getLogger(__name__)

END_S = 1.0
"""How long the thread may take to end; it ends by itself in any case."""


class Extending(NamedTuple):
    """A step: extend these deliveries of one source, and return an answer for each."""

    source: Source
    items: Sequence[HeartbeatEntry]


Answers = Sequence[HeartbeatAnswer]
"""An answer for each delivery."""
Steps = Generator[float | Extending, Answers | None, None]
"""A step is a pause in seconds, or deliveries to extend. Errors of Redis are thrown in. There is no last step."""


class LoopIsClosedError(Exception):
    """The program closed its event loop before it stopped the worker."""


class HeartbeatThread:
    """Runs ``steps`` in a thread, because a handler can block the event loop until its timeout."""

    def __init__(self, steps: Steps, moves: Moves, url: str, timeout_s: float) -> None:
        """``timeout_s`` is the timeout of connecting, and of each call."""
        self._steps = steps
        self._moves = moves
        self._url = url
        self._timeout_s = timeout_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {moves.consumer}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    async def stop(self) -> None:
        """Send no more heartbeats. A call that is under way ends with its reply, or with its timeout."""
        self._ending.set()
        with anyio.move_on_after(END_S):
            await to_thread.run_sync(self._thread.join, abandon_on_cancel=True)

    def _run(self) -> None:
        client = blocking_client(self._url, key=self._moves.keys.stream, timeout_s=self._timeout_s)
        try:
            with suppress(RedisError, OSError):  # connect early, before the server has too many clients
                client.connection_pool.release(client.connection_pool.get_connection())
            step = next(self._steps)
            while not self._ending.is_set():
                if not isinstance(step, Extending):
                    self._ending.wait(step)
                    step = next(self._steps)
                    continue
                try:
                    answers = self._moves.extend_blocking(client, step.source.key, step.items)
                except (RedisError, OSError) as error:
                    if is_contact_error(error):
                        client.connection_pool.disconnect()
                    step = self._steps.throw(error)
                else:
                    step = self._steps.send(answers)
        except LoopIsClosedError:
            logger.debug("event loop is closed: %s", fields(consumer=self._moves.consumer))
        finally:
            client.close()


MakeThread = Callable[[Steps, Moves, str, float], HeartbeatThread]
