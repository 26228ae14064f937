"""Planned events of Redis: it postpones commands, shuts down, and hands over to its replica."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from anyio import to_thread

from reaper.drill.faults import AFTER_PAUSE_S, Fault
from reaper.drill.records import Effect, InjectedFault
from reaper.drill.redis_server import start
from reaper.drill.toolbox import Toolbox
from tests.soak.servers import SoakServer
from tests.support.servers import RedisServer

ENDED_S = 30.0
"""How long a shutdown or a failover is waited for."""


@dataclass(slots=True)
class PlannedFaults:
    """Each method injects one fault, and returns why it could not, or nothing."""

    tools: Toolbox

    async def pause_clients(self, fault: Fault) -> str:
        """Have Redis postpone commands, as it does by itself in a planned failover and before a shutdown."""
        tools, which = self.tools, "WRITE" if fault.amount == "writes" else "ALL"
        injected = InjectedFault(fault.kind, which, time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"Redis postpones {fault.amount} for {fault.lasts_s:g} s")
        tools.supervisor.forgive(fault.lasts_s + AFTER_PAUSE_S)
        await tools.stage.client.execute_command("CLIENT", "PAUSE", round(fault.lasts_s * 1000), which)
        await anyio.sleep(fault.lasts_s)
        tools.over(injected, "Redis goes on")
        return ""

    async def shut_down(self, fault: Fault) -> str:
        """Shut the server down while its replica is behind: since 7.0 it postpones writes until the replica is not."""
        tools, master, replica = self.tools, *self._pair()
        await self._follows(replica, master)
        await tools.stage.client.config_set("save", "3600 1")  # so that it saves when it shuts down
        injected = InjectedFault(fault.kind, f"process {master.pid}", time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"SIGTERM of Redis, whose replica is {fault.lasts_s:g} s behind")
        tools.supervisor.forgive(ENDED_S + AFTER_PAUSE_S)
        async with tools.producer.writing:
            async with self._lagging(replica, fault.lasts_s):
                master.terminate()
            ended = await tools.within(ENDED_S, lambda: not master.running)
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
        async with tools.producer.writing:
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


def _begin_failover(master: RedisServer) -> None:
    master.command("FAILOVER", "TIMEOUT", round(ENDED_S * 1000))
