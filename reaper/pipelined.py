"""Sends commands of many groups together, because a command in a pipeline costs a tenth of a single one."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from workers.protocol.address import Host
from workers.protocol.connection import KeptConnection
from workers.protocol.log_fields import fields
from workers.protocol.meaning import NoMasterYetError
from workers.protocol.routing import RoutedClient
from workers.protocol.scripts import Keys, Script, Words
from workers.protocol.slots import key_of, slot_of

logger = logging.getLogger(__name__)

MOST = 100
"""Short commands of one pipeline. The answers to the first ones wait for the last one, and timers start by answers."""

Answered = Callable[[Any], None]
"""Called with the reply or with an error. It should not raise."""


class _Lane:
    """The commands for one node. One pipeline of them is under way at a time."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        """Number of its connection to the node."""
        self.waiting: list[tuple[Sequence[Any], Answered]] = []
        self.sending: asyncio.Task[None] | None = None


class PipelinedClient(Redis):
    """Sends the commands that wait for a connection in one pipeline, when the replies before them have come."""

    def __init__(self, client: Redis, *, connections: int = 1, most: int = MOST) -> None:
        """Use ``connections`` to each node in turns, each with ``most`` commands. The caller closes ``client``."""
        super().__init__(connection_pool=client.connection_pool)
        self.response_callbacks = client.response_callbacks
        self._client = client
        self._routed = client if isinstance(client, RoutedClient) else None
        self._lanes: dict[tuple[Host | None, int], _Lane] = {}
        self._kept: WeakKeyDictionary[Redis, list[KeptConnection]] = WeakKeyDictionary()
        """The connections to each node, by its client. Lanes share them while slots move to another node."""
        self._connections, self._most = connections, most
        self._turn = 0
        self._is_closed = False

    def ask(self, words: Sequence[Any], answered: Answered) -> None:
        """Send a command. ``answered`` is called later, in the order of the commands on a connection.

        After a lost contact, all commands that wait for the connection get the error.
        """
        node = self._node_of(words)
        self._turn = (self._turn + 1) % self._connections
        lane = self._lanes.get((node, self._turn))
        if lane is None:
            lane = self._lanes[node, self._turn] = _Lane(self._turn)
        lane.waiting.append((words, answered))
        if lane.sending is None:
            # Not in a task group, because leases are handed over while the tasks of the replica are cancelled.
            lane.sending = asyncio.get_running_loop().create_task(self._send(lane, node))

    def ask_script(self, script: Script, keys: Keys, args: Words, answered: Answered) -> None:
        """Run a script, and load it if the server does not know it. ``answered`` is called as by `ask`."""

        def hear(reply: Any) -> None:
            if isinstance(reply, NoScriptError):
                self.ask(("EVAL", script.source, len(keys), *keys, *args), answered)
            else:
                answered(reply)

        self.ask(("EVALSHA", script.digest, len(keys), *keys, *args), hear)

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        """Send one command and return its reply. Raises redis-py's errors."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ask(words, partial(_settle, answer))
        reply = await answer
        if isinstance(reply, Exception):
            raise reply
        read = self.response_callbacks.get(words[0])
        return read(reply, **options) if read else reply

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: ARG002 - the owner of the client closes it
        """Stop sending, and cancel waiting commands. Later ones get an error."""
        self._is_closed = True
        tasks = [lane.sending for lane in self._lanes.values() if lane.sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _node_of(self, words: Sequence[Any]) -> Host | None:
        """Return the node of a cluster that has the key. None = it is unknown, or there is no cluster."""
        return self._routed.node_of(key_of(words) or b"") if self._routed else None

    async def _send(self, lane: _Lane, node: Host | None) -> None:
        """Send until no command waits."""
        replies: list[Any]
        try:
            while lane.waiting:
                batch, lane.waiting = lane.waiting[: self._most], lane.waiting[self._most :]
                try:
                    if node is None and self._routed:
                        await self._routed.masters()  # now it knows the nodes
                        self._spread(batch)
                        continue
                    replies = await self._execute(lane, [words for words, _ in batch])
                except Exception as error:  # noqa: BLE001 - without an answer to its tick, a group would stop
                    batch, lane.waiting = batch + lane.waiting, []
                    replies = [error] * len(batch)
                for (words, answered), reply in zip(batch, replies, strict=True):
                    _pass_on(reply, answered, words)
        finally:
            lane.sending = None

    def _spread(self, batch: Sequence[tuple[Sequence[Any], Answered]]) -> None:
        """Queue each command for its node."""
        for words, answered in batch:
            if self._node_of(words):
                self.ask(words, answered)
            else:
                slot = slot_of(key_of(words) or b"")
                _pass_on(NoMasterYetError(f"no node of the cluster serves slot {slot} now"), answered, words)

    async def _execute(self, lane: _Lane, commands: Sequence[Sequence[Any]]) -> list[Any]:
        if self._is_closed:
            raise RedisConnectionError("the client is closed")
        routed = self._routed
        client = await routed.client_for(key_of(commands[0]) or b"") if routed else self._client
        kept = self._kept.get(client)
        if kept is None:
            kept = self._kept[client] = [KeptConnection(client) for _ in range(self._connections)]
        try:
            replies = await kept[lane.turn].execute_together(commands)
        except (RedisError, OSError) as error:
            if routed:
                routed.failed(error)
            raise
        for reply in replies if routed else ():
            if routed and isinstance(reply, Exception):
                routed.failed(reply)
        return replies


def _pass_on(reply: Any, answered: Answered, words: Sequence[Any]) -> None:
    """Pass a reply on. An error of ``answered`` does not stop the next replies."""
    try:
        answered(reply)
    except Exception:
        logger.exception("cannot read a reply: %s", fields(command=words[0]))


def _settle(answer: asyncio.Future[Any], reply: Any) -> None:
    if not answer.done():  # else its caller was cancelled
        answer.set_result(reply)
