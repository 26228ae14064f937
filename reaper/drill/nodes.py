"""Several servers of the drill's own that stand in for one another, and what is asked of them one by one.

A node is asked whatever it is at the moment, a replica, too, which our clients refuse to talk to. All of that blocks,
for `ANSWER_S` at most: who has an event loop asks from a thread. (Only programs are started from the loop's own: they
end with the thread that started them.)
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import redis
from anyio import to_thread
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from workers.protocol.meaning import is_nothing_there
from workers.testing.server import START_POLL_S, NoServerError, RedisServer

HOST = "127.0.0.1"
ANSWER_S = 2.0
FOLLOWS_AT_ONCE = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
"""Settings of nodes: a replica has all of it as soon as it can."""
_SETTLED_S, _POLL_S = 60.0, 0.05
_WRONG_PASSWORD = "of-the-drill"  # noqa: S105 - it opens nothing: the nodes have none
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Received:
    """What a replica has of its master's history at one moment."""

    offset: int
    """Bytes of it."""
    last_entry: bytes
    """The last ID that was given in the stream that was asked for."""


@dataclass
class Node(RedisServer):
    """One of several servers."""

    def _client(self, port: int) -> "redis.Redis":
        return redis.Redis(
            host=HOST, port=port, protocol=2, legacy_responses=False, retry=Retry(NoBackoff(), 0),
            socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S,
        )  # fmt: skip

    def stop(self) -> None:
        """Have the process stand still (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on; harmless where it does, or has ended."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def replication(self) -> dict[str, Any]:
        """Return what it says of that. Raises what redis-py raises."""
        with self.client() as client:
            return dict(client.info("replication"))

    def follows(self, master: "Node") -> bool:
        """Tell whether it has all that ``master`` has; False where it does not answer."""
        try:
            told = self.replication()
        except (RedisError, OSError):
            return False
        return (told["role"], told.get("master_port"), told.get("master_link_status")) == ("slave", master.port, "up")

    def received(self, stream: str) -> Received | None:
        """Return what it has received of its master; None where it has none. Raises what redis-py raises."""
        before = -1
        while True:
            with self.client() as client:
                call = client.pipeline(transaction=False)
                if "cluster-enabled" in self.config:
                    call.readonly()  # no transaction: what is queued behind it would be refused
                call.xinfo_stream(stream)
                call.info("replication")
                *_, told, replication = call.execute(raise_on_error=False)
            if replication["role"] != "slave":
                return None
            offset = int(replication["master_repl_offset"])
            if offset == before:  # nothing came in between, so the answers belong together
                return Received(offset, _last_entry(told))
            before = offset

    def cut_off(self, replicas: "Sequence[Node]") -> None:
        """Have ``replicas`` hear nothing of it any more, as when the network is between them, until `let_in`."""
        for replica in replicas:
            replica.command("CONFIG", "SET", "masterauth", _WRONG_PASSWORD)
        self.command("CLIENT", "KILL", "TYPE", "replica")

    def let_in(self) -> None:
        """Let it follow a master again."""
        self.command("CONFIG", "SET", "masterauth", "")


@dataclass
class Setup(ABC):
    """Nodes that fail over. Its methods block."""

    nodes: list[Node] = field(default_factory=list)
    known: str = ""
    """The history that was the master's of the drill's stream when it was looked last."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of all that."""

    @property
    @abstractmethod
    def description(self) -> str:
        """For people: what it consists of."""

    @abstractmethod
    def servers(self) -> Sequence[RedisServer]:
        """Return everything that was started, in order."""

    @abstractmethod
    def master_of(self, key: str, *, but: Node | None = None) -> Node | None:
        """Return the node that takes writes to ``key``, and is named by who is asked; None for nobody, or ``but``.

        ``but`` may have ended, or stand still, and is not asked.
        """

    @abstractmethod
    def rejoin(self, node: Node, master: Node) -> None:
        """Have ``node``, which was started again, follow ``master``."""

    def replicas_of(self, master: Node) -> list[Node]:
        """Return those that have all that ``master`` has."""
        return [node for node in self.nodes if node is not master and node.running and node.follows(master)]

    def remember(self, master: Node) -> None:
        """Remember whose history the drill goes by from now on. Raises what redis-py raises."""
        self.known = _lineage(master)

    def is_known(self, master: Node) -> bool:
        """Tell whether ``master`` has that history: nobody was promoted since. Raises what redis-py raises."""
        return _lineage(master) == self.known

    def kill(self) -> None:
        """End everything."""
        for server in self.servers():
            server.kill()


def _lineage(master: Node) -> str:
    """Return what tells the history of one master from that of another."""
    return str(master.replication()["master_replid"])


def _last_entry(told: Any) -> bytes:
    if is_nothing_there(told):
        return b"0-0"
    if isinstance(told, Exception):
        raise told
    return bytes(told["last-generated-id"])


def node_at(nodes: Sequence[Node], port: int) -> Node | None:
    """Return the node that listens there."""
    return next((node for node in nodes if node.port == port), None)


def takes_writes(node: Node) -> bool:
    """Tell whether it is a master; False where it does not answer."""
    with suppress(RedisError, OSError):
        return bool(node.command("ROLE")[0] == b"master")
    return False


async def start(server: RedisServer) -> None:
    """Start one, and wait until it answers. Raises NoServerError."""
    for _ in server.starting():
        await anyio.sleep(START_POLL_S)


async def until(attempt: Callable[[], _T | None], what: str) -> _T:
    """Attempt in a thread until something true comes of it. Raises NoServerError, which says ``what`` did not."""
    with anyio.move_on_after(_SETTLED_S):
        while True:
            with suppress(RedisError, OSError):
                found = await to_thread.run_sync(attempt)
                if found:
                    return found
            await anyio.sleep(_POLL_S)
    raise NoServerError(f"servers were started, and within {_SETTLED_S:g} s it did not come to this: {what}.")


@asynccontextmanager
async def ended_at_last(setup: Setup) -> AsyncIterator[None]:
    """End everything of ``setup`` with the block."""
    try:
        yield
    finally:
        setup.kill()
