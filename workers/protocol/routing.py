"""A client for all nodes of a cluster. Each command or pipeline goes to the node that has the slot of its first key.

One without a key goes to the node of slot 0. No call is sent twice. The answer that a slot has moved is raised, and the
next command looks again.
"""

from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from workers.protocol.address import Host
from workers.protocol.directory import Directory
from workers.protocol.meaning import is_contact_error
from workers.protocol.slots import key_of, slot_of


class RoutedClient(Redis):
    """Holds a client for each node that it used. Commands without a key use a pool of their own."""

    def __init__(self, anywhere: ConnectionPool, directory: Directory, client_at: Callable[[Host], Redis]) -> None:
        super().__init__(connection_pool=anywhere)
        self.auto_close_connection_pool = True
        self._directory = directory
        self._client_at = client_at
        self._clients: dict[Host, Redis] = {}

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        """Send one command and return its reply. Raises redis-py's errors."""
        key = key_of(words)
        if key is None:
            return await super().execute_command(*words, **options)  # type: ignore[no-untyped-call]
        client = await self.client_for(key)
        try:
            return await client.execute_command(*words, **options)
        except (RedisError, OSError) as error:
            self.failed(error)
            raise

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Return a pipeline for commands on keys of one slot, and commands without keys."""
        return _RoutedPipeline(self, transaction, shard_hint)

    async def client_for(self, key: bytes) -> Redis:
        """Return a client for the node that has ``key``. Raises NoMasterError."""
        client = self._client_of(await self._directory.owner(slot_of(key)))
        left = [self._clients.pop(node) for node in self._clients.keys() - self._directory.table.masters]
        for one in left:
            await one.aclose()  # calls that are under way there see a lost contact
        return client

    async def masters(self) -> list[Redis]:
        """Return a client for each node that has slots. Raises NoMasterError."""
        await self._directory.look()
        return [self._client_of(node) for node in sorted(self._directory.table.masters)]

    def node_of(self, key: str | bytes) -> Host | None:
        """Return the node of ``key`` by the last answer of the cluster, or None before the first one."""
        return self._directory.table.owner(slot_of(key if isinstance(key, bytes) else key.encode()))

    def failed(self, error: Exception) -> None:
        """Ask another node for the slots, if ``error`` shows that this one is away, or not the right one."""
        if is_contact_error(error):
            self._directory.doubt()

    def _client_of(self, node: Host) -> Redis:
        if node not in self._clients:
            self._clients[node] = self._client_at(node)
        return self._clients[node]

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close the connections to all nodes."""
        for client in self._clients.values():
            await client.aclose()
        await super().aclose(close_connection_pool)


class _RoutedPipeline(Pipeline):
    def __init__(self, client: RoutedClient, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        keys = (key_of(words) for words, _ in self.command_stack)
        key = next((key for key in keys if key is not None), None)
        if key is not None:
            self.connection_pool = (await self._client.client_for(key)).connection_pool
        try:
            replies = await super().execute(raise_on_error)
        except (RedisError, OSError) as error:
            self._client.failed(error)
            raise
        for reply in replies:
            if isinstance(reply, Exception):  # only without ``raise_on_error``
                self._client.failed(reply)
        return replies
