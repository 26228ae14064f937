"""A client that outlasts failovers: the drill reads and writes on, with any primary."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from workers.protocol.meaning import NoMasterError, NotSentError, is_failover_error, is_outage

PATIENCE_S = 60.0
"""Longer than any failover of a drill."""
_PAUSE_S = 0.1
_ADDS = "XADD"
"""The one command of the drill that does something else where it is done twice."""
_T = TypeVar("_T")


class PatientClient(Redis):
    """Asks again for as long as nobody answers, but sends nothing twice that would then be there twice."""

    def __init__(self, client: Redis) -> None:
        """Replace ``client``, and close its connections with this one."""
        super().__init__(connection_pool=client.connection_pool)
        self.response_callbacks = client.response_callbacks
        self.auto_close_connection_pool = True

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        """Send one command and return its reply. Raises what redis-py raises, an outage only after `PATIENCE_S`."""

        async def send() -> Any:
            return await super(PatientClient, self).execute_command(*words, **options)  # type: ignore[no-untyped-call]

        return await _until_answered(send, adds=words[0] == _ADDS)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Return a pipeline that is as patient."""
        return _PatientPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _PatientPipeline(Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = list(self.command_stack)

        async def send() -> list[Any]:
            self.command_stack = list(stack)  # redis-py empties it, however a call ends
            return await super(_PatientPipeline, self).execute(raise_on_error)

        return await _until_answered(send, adds=any(words[0] == _ADDS for words, _ in stack))


async def _until_answered(send: Callable[[], Awaitable[_T]], *, adds: bool) -> _T:
    deadline = anyio.current_time() + PATIENCE_S
    while True:
        try:
            return await send()
        except (RedisError, OSError) as error:
            if not is_outage(error) or (adds and not _changed_nothing(error)) or anyio.current_time() > deadline:
                raise
        await anyio.sleep(_PAUSE_S)


def _changed_nothing(error: Exception) -> bool:
    """Tell whether nothing was sent, or all of it rejected."""
    return isinstance(error, NoMasterError | NotSentError) or is_failover_error(error)
