"""Sends calls of one script in pipelines, because many calls in one pipeline cost a tenth of single calls.

Calls wait for a moment, so that others join them. In a cluster, each node gets a pipeline of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from workers.protocol.routing import RoutedClient
from workers.protocol.scripts import Keys, Script, Words

MOST = 250
"""Calls of one pipeline. The server is busy with it for some milliseconds."""


@dataclass(slots=True, eq=False)
class _Call:
    keys: Keys
    args: Words
    is_answered: anyio.Event = field(default_factory=anyio.Event)
    reply: Any = None


class Batches:
    """Calls of one script, by many tasks. `run` must be running."""

    def __init__(self, client: Redis, script: Script, window_s: float) -> None:
        """Each call waits for up to ``window_s``."""
        self._client = client
        self._script = script
        self._window_s = window_s
        self._waiting: list[_Call] = []
        self._some = anyio.Event()

    async def call(self, keys: Keys, args: Words) -> Any:
        """Run the script with others of its kind, and return its reply. Raises what redis-py raises.

        The first key names the node. After a lost contact the effect is unknown.
        """
        call = _Call(keys, args)
        self._waiting.append(call)
        self._some.set()
        await call.is_answered.wait()
        if isinstance(call.reply, NoScriptError):
            return await self._script.run(self._client, keys, args)
        if isinstance(call.reply, Exception):
            raise call.reply
        return call.reply

    async def run(self) -> None:
        """Send calls until cancelled."""
        async with anyio.create_task_group() as pipelines:
            while True:
                await self._some.wait()
                await anyio.sleep(self._window_s)
                self._some = anyio.Event()
                waiting, self._waiting = self._waiting, []
                for batch in self._by_node(waiting):
                    for first in range(0, len(batch), MOST):
                        pipelines.start_soon(self._send, batch[first : first + MOST])

    def _by_node(self, calls: Sequence[_Call]) -> Iterable[list[_Call]]:
        batches: dict[object, list[_Call]] = {}
        for call in calls:
            node = self._client.node_of(call.keys[0]) if isinstance(self._client, RoutedClient) else None
            batches.setdefault(node, []).append(call)
        return batches.values()

    async def _send(self, calls: Sequence[_Call]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command("EVALSHA", self._script.digest, len(call.keys), *call.keys, *call.args)
        try:
            replies = await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            replies = [error] * len(calls)
        _answer(calls, replies)


def _answer(calls: Sequence[_Call], replies: Sequence[Any]) -> None:
    for call, reply in zip(calls, replies, strict=True):
        call.reply = reply
        call.is_answered.set()
