"""What a replica knows of the nodes of a cluster that have the streams it watches: a grace for each.

An outage of one node stops recovery of what lies there, and of nothing else. What moves from node to node, with its
slot or because a replica of its node was promoted, waits on its own: nothing was extended on the way.

This goes on between terms: who begins to lead has to know what was away a moment ago.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from workers.protocol.address import Host
from workers.protocol.routing import RoutedClient
from workers.protocol.slots import slot_of
from workers.runtime.clock import monotonic_ms, server_ms
from workers.runtime.clock_steps import ClockSteps
from workers.runtime.contact import Contact
from workers.runtime.grace import KEYS_MOVED, Grace

LOOK_S = 0.5
"""How often is looked whether slots have moved, and at the latest where we lost contact."""
NOT_YET_MS = 250
"""So long is waited, again and again, for the first answer of a node."""


class Standing(Protocol):
    """How it stands with the server that has the keys of a pair. `Grace` says what the words mean."""

    @property
    def steps(self) -> ClockSteps:
        """How its clock was set meanwhile."""

    @property
    def why(self) -> str:
        """What makes recovery wait, as people are told; '' where nothing did."""

    def until(self, visibility_ms: int) -> int:
        """Return the instant from which deliveries may be recovered."""

    def begins_ms(self, visibility_ms: int) -> int:
        """Return the instant from which a process that is new may recover."""

    def call_valid_ms(self, visibility_ms: int, now_ms: int) -> int:
        """Return for how long a call that recovers may wait to be run."""

    def longest_ms(self, visibility_ms: int) -> int:
        """Return how long deliveries may have to wait."""


class Shards:
    """Stays in contact with each node that has one of the streams. `run` must be running."""

    def __init__(
        self,
        client: RoutedClient,
        streams: Callable[[], Iterable[str]],
        grace: Callable[[], Grace],
        every_s: Callable[[], float],
    ) -> None:
        """``every_s`` tells how often each node is asked."""
        self._client = client
        self._streams = streams
        self._make_grace = grace
        self.longest_ms = grace().longest_ms
        self._every_s = every_s
        self._nodes: dict[Host, _Node] = {}

    async def run(self) -> None:
        """Stay in contact, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                with suppress(RedisError, OSError):  # else the nodes' own tasks meet it
                    await self._client.tables.current()
                for host in {self._owner(stream) for stream in self._streams()} - {None}:
                    if host and host not in self._nodes:
                        node = _Node(self._client.at_node(host), self._make_grace(), self._every_s)
                        self._nodes[host] = node
                        tasks.start_soon(node.run)
                await anyio.sleep(LOOK_S)

    def _owner(self, stream: str) -> Host | None:
        return self._client.owner_of(slot_of(stream.encode()))

    def standing(self, stream: str) -> "OfStream":
        """Return how it stands with the node that has ``stream``, whichever that is at the time."""
        return OfStream(self, self._client, slot_of(stream.encode()))

    def node_of(self, slot: int) -> "_Node | None":
        """Return what is known of the node that has ``slot``; None where we do not know yet."""
        owner = self._client.owner_of(slot)
        node = self._nodes.get(owner) if owner else None
        return node if node and node.has_answered else None


class _Node:
    def __init__(self, client: Redis, grace: Grace, every_s: Callable[[], float]) -> None:
        self.grace = grace
        self.clock_offset_ms = 0
        self.has_answered = False
        self._client = client
        self._every_s = every_s
        self._contact = Contact(client, grace, clock=anyio.current_time)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._contact.run)
            while True:
                self._contact.ask()
                try:
                    at_ms = await server_ms(self._client)
                    if self._contact.answered(at_ms):
                        self.clock_offset_ms = at_ms - monotonic_ms()
                    await self._contact.wait_s(0)  # learns since when it has been up, where that may have changed
                    self.has_answered = True
                    pause_s = self._every_s()
                except (RedisError, OSError) as error:
                    self._contact.failed(error)
                    pause_s = min(self._every_s(), LOOK_S)
                await anyio.sleep(pause_s)


class OfStream:
    """A `Standing` that follows its slot."""

    def __init__(self, shards: Shards, client: RoutedClient, slot: int) -> None:
        self._shards = shards
        self._client = client
        self._slot = slot
        self._longest = shards.longest_ms
        self._no_steps = ClockSteps()

    @property
    def steps(self) -> ClockSteps:
        """How the clock of its node was set meanwhile."""
        node = self._shards.node_of(self._slot)
        return node.grace.steps if node else self._no_steps

    @property
    def clock_offset_ms(self) -> int:
        """The time of its node minus our monotonic time."""
        node = self._shards.node_of(self._slot)
        return node.clock_offset_ms if node else 0

    @property
    def why(self) -> str:
        """What happened last of that which makes recovery wait; '' where nothing did."""
        node = self._shards.node_of(self._slot)
        if node is None:
            return "its node has not answered yet"
        moved_ms = self._client.moved_ms(self._slot)
        return node.grace.why if moved_ms is None or moved_ms < node.grace.until(0) else KEYS_MOVED

    def until(self, visibility_ms: int) -> int:
        """Return the instant from which deliveries may be recovered; a moment from now while it is not known."""
        node = self._shards.node_of(self._slot)
        if node is None:
            return monotonic_ms() + NOT_YET_MS
        moved_ms = self._client.moved_ms(self._slot)
        return max(
            node.grace.until(visibility_ms),
            0 if moved_ms is None else moved_ms + self.longest_ms(visibility_ms),
        )

    def begins_ms(self, visibility_ms: int) -> int:
        """Return the instant from which a process that is new may recover; `until` sees to a node not known yet."""
        node = self._shards.node_of(self._slot)
        return node.grace.begins_ms(visibility_ms) if node else 0

    def call_valid_ms(self, visibility_ms: int, now_ms: int) -> int:
        """Return for how long a call that recovers may wait to be run; for nothing while its node is not known."""
        node = self._shards.node_of(self._slot)
        return node.grace.call_valid_ms(visibility_ms, now_ms) if node else 0

    def longest_ms(self, visibility_ms: int) -> int:
        """Return how long deliveries may have to wait."""
        return self._longest(visibility_ms)
