"""Faults that hit Redis itself: its memory, its connections, its clock."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from reaper.drill.faults import AFTER_PAUSE_S, Fault
from reaper.drill.records import Effect, InjectedFault
from reaper.drill.redis_server import start
from reaper.drill.toolbox import Toolbox
from tests.soak.servers import OUR_NAME, SoakServer
from workers.protocol.messages import text

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

    async def restart(self, fault: Fault) -> str:
        """Kill the server, and start it again after a while. Raises NoServerError."""
        tools, process = self.tools, self.tools.stage.server.process
        assert process
        injected = InjectedFault(fault.kind, f"process {process.pid}", time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"kill -9 of Redis; it is away for {fault.lasts_s:g} s")
        tools.supervisor.forgive(fault.lasts_s + AFTER_PAUSE_S)
        async with tools.producer.writing:
            process.kill()
            await anyio.sleep(fault.lasts_s)
            await start(process)
        tools.over(injected, "Redis is there again")
        return ""

    async def fill(self, fault: Fault) -> str:
        """Leave the server no memory, so that it takes no write that could need any; it still serves reads."""
        tools, seconds = self.tools, fault.lasts_s
        injected = InjectedFault(fault.kind, "maxmemory", time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"Redis is full for {seconds:g} s")
        tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
        async with tools.producer.writing, self._no_memory():
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
