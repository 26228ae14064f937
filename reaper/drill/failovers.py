"""Faults of several servers: a master goes and a replica is promoted, or a slot moves to another master.

What a master had answered for and the promoted replica had not received is lost, whoever wrote it: replication is
asynchronous. Which jobs that are is not guessed. A replica's history is a beginning of its master's, so it has received
a job exactly if the stream's last ID had come so far; that is read from the replicas until one is promoted, and holds
where the promoted one says that it had followed this master to that very byte.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import anyio
from anyio import to_thread
from redis.exceptions import RedisError

from reaper.drill.cluster_setup import ClusterSetup
from reaper.drill.faults import AFTER_PAUSE_S, Fault, FaultKind
from reaper.drill.nodes import Node, Received, Setup, start
from reaper.drill.records import Enqueued, InjectedFault
from reaper.drill.toolbox import Toolbox
from workers.protocol.messages import counted, entry_order

FIT_S = 45.0
"""How long a replica that could be promoted is waited for: Sentinels ask an old master seldom to follow."""
PROMOTED_S = 60.0
BEHIND_S = 1.0
"""How long the replicas of a master hear nothing of it before it is killed."""
NOBODY_FOLLOWS = "no replica followed the master"
NOT_PROMOTED = "no replica was promoted"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class _Promoted:
    node: Node
    last_entry: bytes | None
    """The last ID of the stream that it had received from the master before; None where that is not known."""


@dataclass(slots=True)
class Failovers:
    """Each method injects one fault, and returns why it could not, or nothing; one at a time."""

    tools: Toolbox
    _one: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def _setup(self) -> Setup:
        setup = self.tools.stage.server.setup
        assert setup is not None
        return setup

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
                await to_thread.run_sync(master.cut_off, heirs)
                await anyio.sleep(BEHIND_S)
            injected = InjectedFault(FaultKind.KILL_MASTER, f"port {master.port}", at)
            how = f", whose replicas have heard nothing for {BEHIND_S:g} s" if behind else ""
            after = await self._fail_over(injected, f"kill -9 of the master of Redis{how}", master, heirs, Node.kill)
            if after:
                await start(master)
                await to_thread.run_sync(self._setup.rejoin, master, after)
            return "" if after else NOT_PROMOTED

    async def pause_master(self, fault: Fault) -> str:
        """Stop the master until another is, and for a while longer; it goes on as if nothing had happened."""
        async with self._one:
            found = await self._fit()
            if not found:
                return NOBODY_FOLLOWS
            master, heirs = found
            injected = InjectedFault(FaultKind.PAUSE_MASTER, f"port {master.port}", time.time())
            try:
                after = await self._fail_over(injected, "the master of Redis is stopped", master, heirs, Node.stop)
                await anyio.sleep(_lasts_s(fault))
            finally:
                master.go_on()
            self.tools.announce("the master before goes on")
            return "" if after else NOT_PROMOTED

    async def move_slot(self, fault: Fault) -> str:
        """Move the stream's slot to another master, under way for as long as the fault lasts."""
        tools, setup, stream = self.tools, self._setup, self._stream
        assert isinstance(setup, ClusterSetup)
        async with self._one:
            found = await self._fit()
            if not found:
                return NOBODY_FOLLOWS
            from_ = found[0]
            to = next(node for node in await to_thread.run_sync(setup.masters) if node is not from_)
            injected = InjectedFault(FaultKind.MOVE_SLOT, f"from port {from_.port} to {to.port}", time.time())
            tools.supervisor.forgive(_lasts_s(fault) + AFTER_PAUSE_S)
            async with tools.writing_nothing():
                await tools.note(injected, f"the stream's slot moves from port {from_.port} to {to.port}")
                await to_thread.run_sync(setup.begin_move, stream, from_, to)
                await anyio.sleep(_lasts_s(fault))
                await to_thread.run_sync(setup.end_move, stream, from_, to)
                await self._answered(to)
            tools.amend(injected, replace(injected, until=time.time()))
            tools.announce(f"the slot is at port {to.port}")
            return ""

    async def _fit(self) -> tuple[Node, list[Node]] | None:
        """Return the master of the stream, and the replicas that could be promoted, once there are some."""

        def look() -> tuple[Node, list[Node]] | None:
            with suppress(RedisError, OSError):
                master = self._setup.master_of(self._stream)
                heirs = self._setup.replicas_of(master) if master else []
                return (master, heirs) if master and heirs else None
            return None

        with anyio.move_on_after(FIT_S):
            while True:
                found = await to_thread.run_sync(look)
                if found:
                    return found
                await anyio.sleep(_POLL_S)
        return None

    async def _fail_over(
        self,
        injected: InjectedFault,
        sentence: str,
        master: Node,
        heirs: Sequence[Node],
        strike: Callable[[Node], None],
    ) -> Node | None:
        """Strike the master, and return another once there is one; put on record what that one had not received."""
        tools = self.tools
        tools.supervisor.forgive(PROMOTED_S + AFTER_PAUSE_S)
        async with tools.writing_nothing():
            await tools.note(injected, sentence)
            accepted, lineage = list(tools.producer.enqueued), self._setup.known
            strike(master)
            promoted = await self._promotion(master, heirs, lineage)
            if not promoted:
                return None
            await self._answered(promoted.node)
        lost = _not_received(accepted, promoted.last_entry)
        tools.producer.poisonous -= sum(job.poison for job in lost)
        proven = promoted.last_entry is not None
        over = replace(injected, until=time.time(), jobs=tuple(job.n for job in lost), proven=proven)
        tools.amend(injected, over)
        tools.announce(
            f"port {promoted.node.port} is the master now; it lacks {counted(len(lost), 'job')} of the old one's"
        )
        return promoted.node

    async def _promotion(self, master: Node, heirs: Sequence[Node], lineage: str) -> _Promoted | None:
        """Return who was promoted, having looked all the while at what the replicas have received."""
        seen: dict[int, set[Received]] = {heir.port: set() for heir in heirs}
        stream, setup = self._stream, self._setup

        def look() -> _Promoted | None:
            for heir in heirs:
                with suppress(RedisError, OSError):
                    if received := heir.received(stream):
                        seen[heir.port].add(received)
                    heir.let_in()
            with suppress(RedisError, OSError):
                after = setup.master_of(stream, but=master)
                if after:
                    return _Promoted(after, _had_followed(after, lineage, seen.get(after.port, set())))
            return None

        with anyio.move_on_after(PROMOTED_S):
            while True:
                promoted = await to_thread.run_sync(look)
                if promoted:
                    return promoted
                await anyio.sleep(_POLL_S)
        return None

    async def _answered(self, master: Node) -> None:
        """Wait until our own clients are let on, and remember that they talk to ``master``."""
        for client in (self.tools.stage.client, self.tools.stage.namespace_client):
            await client.ping()
        await to_thread.run_sync(self._setup.remember, master)


def _had_followed(node: Node, lineage: str, seen: set[Received]) -> bytes | None:
    """Return the last ID that ``node`` had received of the history ``lineage``, where one of ``seen`` is its end."""
    told = node.replication()
    if told["master_replid2"] != lineage:
        return None
    end = int(told["second_repl_offset"]) - 1
    return next((received.last_entry for received in seen if received.offset == end), None)


def _not_received(accepted: Sequence[Enqueued], last_entry: bytes | None) -> list[Enqueued]:
    if last_entry is None:
        return []
    return [job for job in accepted if entry_order(job.entry_id) > entry_order(last_entry)]


def _lasts_s(fault: Fault) -> float:
    assert fault.lasts is not None
    return fault.lasts.total_seconds()
