"""Faults of several servers. A master goes and a replica is promoted, or a slot moves to another master.

Replication is asynchronous, so a write is lost if the master had answered it and the promoted replica had not received
it. Which jobs that are is not guessed. A replica's history is a beginning of its master's, so it has received a job
exactly if the stream's last ID had come so far. That ID is read from the replicas until one is promoted. It holds if
the promoted one says that it had followed this master to that very byte.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from redis.exceptions import RedisError

from reaper.drill.faults import AFTER_PAUSE_S, Fault
from reaper.drill.records import Effect, Enqueued, InjectedFault
from reaper.drill.redis_server import start
from reaper.drill.toolbox import Toolbox
from tests.soak.servers import SoakServer
from tests.support.cluster import Cluster
from tests.support.sentinel import Setup
from tests.support.servers import RedisServer
from workers.protocol.meaning import is_missing_key
from workers.protocol.messages import counted, entry_order

FIT_S = 45.0
"""How long a replica that could be promoted is waited for: Sentinels ask an old master seldom to follow."""
PROMOTED_S = 60.0
BEHIND_S = 1.0
"""How long the replicas of a master hear nothing of it before it is killed."""
NOBODY_FOLLOWS = "no replica followed the master"
NOT_PROMOTED = "no replica was promoted"
_POLL_S = 0.1
_WRONG_PASSWORD = "of-the-drill"  # noqa: S105 - it opens no door, because the nodes have no password


_FoundT = TypeVar("_FoundT")


@dataclass(frozen=True, slots=True)
class Received:
    """How much of its master's history a replica has at one moment."""

    offset: int
    """Bytes."""
    last_entry: bytes
    """The last ID that was given in the stream."""


@dataclass(frozen=True, slots=True)
class _Promoted:
    node: RedisServer
    last_entry: bytes | None
    """The last ID of the stream that it had received from the master before; None where that is not known."""


@dataclass(slots=True)
class Failovers:
    """Each method injects one fault at a time, and returns '' or the reason why it could not."""

    tools: Toolbox
    lineage: str
    """The history of the master that the drill talks to."""
    unproven: list[str] = field(default_factory=list)
    """Faults after which it is not known what the promoted replica had received."""
    _one: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def _nodes(self) -> Setup | Cluster:
        return nodes_of(self.tools.stage.server)

    @property
    def _stream(self) -> str:
        return self.tools.stage.keys.stream

    async def kill_master(self, fault: Fault) -> str:
        """Kill the master, wait until another is, and start it again, to follow. Raises NoServerError."""
        async with self._one:
            found = await self._fit()
            if not found:
                return NOBODY_FOLLOWS
            master, heirs = found
            at, behind = time.time(), fault.amount == "behind"
            if behind:
                await to_thread.run_sync(_cut_off, master, heirs)
                await anyio.sleep(BEHIND_S)
            injected = InjectedFault(fault.kind, f"port {master.port}", at, effect=Effect.AWAY | Effect.FORGETS)
            how = f", whose replicas have heard nothing for {BEHIND_S:g} s" if behind else ""
            after = await self._fail_over(
                injected, f"kill -9 of the master of Redis{how}", master, heirs, RedisServer.kill
            )
            if after:
                await start(master)
                await to_thread.run_sync(self._nodes.rejoin, master, after)
            return "" if after else NOT_PROMOTED

    async def pause_master(self, fault: Fault) -> str:
        """Stop the master until another one is promoted, and for a while longer. It goes on as before."""
        async with self._one:
            found = await self._fit()
            if not found:
                return NOBODY_FOLLOWS
            master, heirs = found
            injected = InjectedFault(
                fault.kind, f"port {master.port}", time.time(), effect=Effect.AWAY | Effect.FORGETS
            )
            try:
                after = await self._fail_over(
                    injected, "the master of Redis is stopped", master, heirs, RedisServer.pause
                )
                await anyio.sleep(fault.lasts_s)
            finally:
                master.resume()
            self.tools.announce("the master before goes on")
            return "" if after else NOT_PROMOTED

    async def move_slot(self, fault: Fault) -> str:
        """Move the stream's slot to another master, under way for as long as the fault lasts."""
        tools, nodes, stream = self.tools, self._nodes, self._stream
        assert isinstance(nodes, Cluster)
        async with self._one:
            found = await self._fit()
            if not found:
                return NOBODY_FOLLOWS
            from_ = found[0]
            to = next(node for node in await to_thread.run_sync(nodes.masters) if node is not from_)
            moves = f"from port {from_.port} to {to.port}"
            injected = InjectedFault(fault.kind, moves, time.time(), effect=Effect.AWAY)
            tools.supervisor.forgive(fault.lasts_s + AFTER_PAUSE_S)
            await tools.note(injected, f"the stream's slot moves {moves}")
            async with tools.producer.writing:
                await to_thread.run_sync(nodes.begin_move, stream, to)
                await anyio.sleep(fault.lasts_s)
                await to_thread.run_sync(nodes.move_keys, stream, to)
                await to_thread.run_sync(nodes.end_move, stream, to)
                await self._answered(to)
            tools.over(injected, f"the slot is at port {to.port}")
            return ""

    async def _fit(self) -> tuple[RedisServer, list[RedisServer]] | None:
        """Return the master of the stream, and the replicas that could be promoted, once there are some."""

        def look() -> tuple[RedisServer, list[RedisServer]] | None:
            with suppress(RedisError, OSError):
                master = self._nodes.master_of(self._stream)
                heirs = [node for node in self._nodes.nodes if node.running and node.follows(master)] if master else []
                return (master, heirs) if master and heirs else None
            return None

        return await _found(look, FIT_S)

    async def _fail_over(
        self,
        injected: InjectedFault,
        sentence: str,
        master: RedisServer,
        heirs: Sequence[RedisServer],
        strike: Callable[[RedisServer], None],
    ) -> RedisServer | None:
        """Strike the master, and return another once there is one. Record the jobs that that one had not received."""
        tools = self.tools
        tools.supervisor.forgive(PROMOTED_S + AFTER_PAUSE_S)
        await tools.note(injected, sentence)
        async with tools.producer.writing:
            accepted = list(tools.producer.enqueued)
            strike(master)
            promoted = await self._promotion(master, heirs)
            if not promoted:
                return None
            await self._answered(promoted.node)
        lost = _not_received(accepted, promoted.last_entry)
        tools.producer.poisonous -= sum(job.poison for job in lost)
        if promoted.last_entry is None:
            self.unproven.append(injected.kind)
        lacks = f"it lacks {counted(len(lost), 'job')} of the old one's"
        tools.over(injected, f"port {promoted.node.port} is the master now; {lacks}", jobs=tuple(job.n for job in lost))
        return promoted.node

    async def _promotion(self, master: RedisServer, heirs: Sequence[RedisServer]) -> _Promoted | None:
        """Return the promoted replica. Until then, look all the while at the received jobs of the replicas."""
        seen: dict[int, set[Received]] = {heir.port: set() for heir in heirs}
        stream, nodes, lineage = self._stream, self._nodes, self.lineage

        def look() -> _Promoted | None:
            for heir in heirs:
                with suppress(RedisError, OSError):
                    if received := _received(heir, stream):
                        seen[heir.port].add(received)
                    heir.command("CONFIG", "SET", "masterauth", "")  # again, after `_cut_off`
            with suppress(RedisError, OSError):
                after = nodes.master_of(stream, but=master)
                if after:
                    return _Promoted(after, _had_followed(after, lineage, seen.get(after.port, set())))
            return None

        return await _found(look, PROMOTED_S)

    async def _answered(self, master: RedisServer) -> None:
        """Wait until our own clients are let on, and remember that they talk to ``master``."""
        for client in (self.tools.stage.client, self.tools.stage.namespace_client):
            await client.ping()
        self.lineage = await to_thread.run_sync(lineage_of, master)


async def _found(look: Callable[[], _FoundT | None], patience_s: float) -> _FoundT | None:
    """Return the result of ``look``, called again and again in a thread, or None if it stays empty."""
    with anyio.move_on_after(patience_s):
        while True:
            found = await to_thread.run_sync(look)
            if found:
                return found
            await anyio.sleep(_POLL_S)
    return None


def nodes_of(server: object) -> Setup | Cluster:
    """Return the nodes of a server that fails over."""
    assert isinstance(server, SoakServer)
    assert server.nodes
    return server.nodes


def lineage_of(master: RedisServer) -> str:
    """Return the name of a master's history. A promoted replica begins a new one. Raises errors of redis-py."""
    return str(master.replication()["master_replid"])


def _received(replica: RedisServer, stream: str) -> Received | None:
    """Return the received position of a replica, or None for another server. Raises errors of redis-py."""
    before = -1
    while True:
        with replica.client() as client:
            call = client.pipeline(transaction=False)
            if "cluster-enabled" in replica.config:
                call.readonly()  # no transaction, because the queued commands would be rejected
            call.xinfo_stream(stream)
            call.info("replication")
            *_, told, replication = call.execute(raise_on_error=False)
        if replication["role"] != "slave":
            return None
        offset = int(replication["master_repl_offset"])
        if offset == before:  # there was no change in between, so the answers belong together
            return Received(offset, _last_entry(told))
        before = offset


def _last_entry(told: Any) -> bytes:
    if is_missing_key(told):
        return b"0-0"
    if isinstance(told, Exception):
        raise told
    return bytes(told["last-generated-id"])


def _cut_off(master: RedisServer, replicas: Sequence[RedisServer]) -> None:
    """Let replicas receive no more, as if the network were cut between them and their master."""
    for replica in replicas:
        replica.command("CONFIG", "SET", "masterauth", _WRONG_PASSWORD)
    master.command("CLIENT", "KILL", "TYPE", "replica")


def _had_followed(node: RedisServer, lineage: str, seen: set[Received]) -> bytes | None:
    """Return the last ID that ``node`` had received of the history ``lineage``, if one of ``seen`` is its end."""
    told = node.replication()
    if told["master_replid2"] != lineage:
        return None
    end = int(told["second_repl_offset"]) - 1
    return next((received.last_entry for received in seen if received.offset == end), None)


def _not_received(accepted: Sequence[Enqueued], last_entry: bytes | None) -> list[Enqueued]:
    if last_entry is None:
        return []
    return [job for job in accepted if entry_order(job.entry_id.encode()) > entry_order(last_entry)]
