"""Faults that hit Redis itself: its memory, its connections, its clock."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from anyio import to_thread

from reaper.drill.faults import AFTER_PAUSE_S, Fault
from reaper.drill.records import Effect, InjectedFault
from reaper.drill.redis_server import OUR_NAME, start
from reaper.drill.toolbox import Toolbox
from tests.soak.servers import SoakServer
from tests.support.servers import RedisServer
from workers.protocol.messages import text

ENDED_S = 30.0
"""How long a shutdown or a failover is waited for."""
STEP_S = 3_600.0
"""By how much a clock is set."""


@dataclass(slots=True)
class ServerFaults:
    """Each method injects one fault, and returns why it could not, or nothing."""

    tools: Toolbox

    async def set_clock(self, fault: Fault) -> str:
        """Set the server's clock, as an administrator does, or a machine that has just found its time server."""
        server = self.tools.stage.server
        assert isinstance(server, SoakServer)
        assert server.clock
        injected = InjectedFault(fault.kind, fault.amount, time.time())
        server.clock.step_to(STEP_S if fault.amount == "ahead" else -STEP_S)
        await self.tools.note(injected, f"the clock of Redis is set {fault.amount} by {STEP_S / 3600:g} h")
        return ""

    async def fill(self, fault: Fault) -> str:
        """Leave the server no memory, so that it takes no write that could need any; it still serves reads."""
        tools, seconds = self.tools, fault.lasts_s
        injected = InjectedFault(fault.kind, "maxmemory", time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"Redis is full for {seconds:g} s")
        tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
        async with tools.writing_nothing(), self._no_memory():
            await anyio.sleep(seconds)
        tools.over(injected, "Redis takes writes again")
        return ""

    @asynccontextmanager
    async def _no_memory(self) -> AsyncIterator[None]:
        client = self.tools.stage.client
        await client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            await client.config_set("maxmemory", 0)

    async def shut_down(self, fault: Fault) -> str:
        """Shut the server down while its replica is behind: since 7.0 it postpones writes until the replica is not."""
        tools, master, replica = self.tools, *self._pair()
        await self._follows(replica, master)
        await tools.stage.client.config_set("save", "3600 1")  # so that it saves when it shuts down
        injected = InjectedFault(fault.kind, f"process {master.pid}", time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"SIGTERM of Redis, whose replica is {fault.lasts_s:g} s behind")
        tools.supervisor.forgive(ENDED_S + AFTER_PAUSE_S)
        async with tools.writing_nothing():
            async with self._lagging(replica, fault.lasts_s):
                master.terminate()
            ended = await tools.within(ENDED_S, _asked(lambda: not master.running))
            code = master.exit_code
            master.kill()
            await start(master)
        tools.over(injected, f"Redis is there again; it had ended with exit code {code}")
        return "" if ended and code == 0 else f"Redis did not shut down in order (exit code {code})"

    async def fail_over(self, fault: Fault) -> str:
        """Have a replica take over that is behind, and then the old master again: clients know only its address."""
        tools, master, replica = self.tools, *self._pair()
        await self._follows(replica, master)
        injected = InjectedFault(fault.kind, f"port {master.port}", time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"FAILOVER to a replica that is {fault.lasts_s:g} s behind, and back")
        tools.supervisor.forgive(2 * ENDED_S + AFTER_PAUSE_S)
        async with tools.writing_nothing():
            async with self._lagging(replica, fault.lasts_s):
                await to_thread.run_sync(_begin_failover, master)
            there = await self._follows(master, replica)
            if there:
                await to_thread.run_sync(_begin_failover, replica)
            back = await self._follows(replica, master)
        tools.over(injected, "the old master has taken over again")
        return "" if there and back else "the replica was not promoted, or the old master not promoted again"

    def _pair(self) -> tuple[RedisServer, RedisServer]:
        server = self.tools.stage.server
        assert isinstance(server, SoakServer)
        assert isinstance(server.process, RedisServer)
        assert server.replica
        return server.process, server.replica

    async def _follows(self, replica: RedisServer, master: RedisServer) -> bool:
        """Wait until ``replica`` has all that ``master`` has; False if it does not come to that."""
        return bool(await self.tools.within(ENDED_S, partial(to_thread.run_sync, replica.follows, master)))

    @asynccontextmanager
    async def _lagging(self, replica: RedisServer, seconds: float) -> AsyncIterator[None]:
        """Have the replica so far behind when the block begins, and go on so long after it."""
        replica.pause()
        try:
            await anyio.sleep(seconds)
            yield
            await anyio.sleep(seconds)
        finally:
            replica.resume()

    async def cut(self, fault: Fault) -> str:
        """Cut every connection but the drill's own, as the replacement of a proxy does. Sent calls may be executed."""
        tools, client = self.tools, self.tools.stage.client
        others = [row["id"] for row in await client.client_list() if text(row["name"]) != OUR_NAME]
        at = time.time()
        tools.supervisor.forgive(AFTER_PAUSE_S)
        pipeline = client.pipeline(transaction=True)  # no client is back before the last one is cut
        for number in others:
            pipeline.execute_command("CLIENT", "KILL", "ID", number)
        cut = sum(not isinstance(reply, Exception) for reply in await pipeline.execute(raise_on_error=False))
        injected = InjectedFault(fault.kind, f"{cut} connections", at, until=at, effect=Effect.CUTS)
        await tools.note(injected, f"{cut} connections to Redis are cut")
        return ""


def _begin_failover(master: RedisServer) -> None:
    master.command("FAILOVER", "TIMEOUT", round(ENDED_S * 1000))


def _asked(question: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return question()

    return ask
