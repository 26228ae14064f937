"""Faults that hit Redis itself. Whoever plays them writes nothing meanwhile, so that the drill's own rows stay true."""

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio

from reaper.drill.faults import AFTER_PAUSE_S, Fault, FaultKind
from reaper.drill.records import InjectedFault
from reaper.drill.redis_server import OUR_NAME
from reaper.drill.toolbox import Toolbox
from workers.protocol.messages import text

STEP_S = 3_600.0
"""By how much a clock is set."""


@dataclass(slots=True)
class ServerFaults:
    """Each method injects one fault, and returns why it could not, or nothing."""

    tools: Toolbox

    async def set_clock(self, fault: Fault) -> str:
        """Set the server's clock, as an administrator does, or a machine that has found its time server at last."""
        clock = self.tools.stage.server.clock
        assert clock is not None
        injected = InjectedFault(FaultKind.CLOCK_STEP, fault.amount, time.time())
        clock.step_to(STEP_S if fault.amount == "ahead" else -STEP_S)
        await self.tools.note(injected, f"the clock of Redis is set {fault.amount} by {STEP_S / 3600:g} h")
        return ""

    async def pause(self, fault: Fault) -> str:
        """Stop the server itself, as a machine does that swaps or is being moved: connections stay, nothing answers."""
        pid, seconds = self.tools.stage.server.pid, _lasts_s(fault)
        assert pid is not None
        injected = InjectedFault(FaultKind.PAUSE_REDIS, f"process {pid}", time.time())
        await self.tools.note(injected, f"Redis is stopped for {seconds:g} s")
        self.tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
        try:
            os.kill(pid, signal.SIGSTOP)
            await anyio.sleep(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.tools.over(injected, time.time())
        self.tools.announce("Redis goes on")
        return ""

    async def restart(self, fault: Fault) -> str:
        """Kill the server, and start it again after a while. Raises NoServerError."""
        tools, server, seconds = self.tools, self.tools.stage.server, _lasts_s(fault)
        injected = InjectedFault(FaultKind.RESTART_REDIS, f"process {server.pid}", time.time())
        await tools.note(injected, f"kill -9 of Redis; it is away for {seconds:g} s")
        tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
        async with tools.writing_nothing():
            await server.restart(seconds)
        tools.over(injected, time.time())
        tools.announce("Redis is there again")
        return ""

    async def fill(self, fault: Fault) -> str:
        """Let the server have no memory left, so that it takes no write that could need any; reads are served."""
        tools, seconds = self.tools, _lasts_s(fault)
        injected = InjectedFault(FaultKind.FILL_REDIS, "maxmemory", time.time())
        await tools.note(injected, f"Redis is full for {seconds:g} s")
        tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
        async with tools.writing_nothing(), self._no_memory():
            await anyio.sleep(seconds)
        tools.over(injected, time.time())
        tools.announce("Redis takes writes again")
        return ""

    @asynccontextmanager
    async def _no_memory(self) -> AsyncIterator[None]:
        client = self.tools.stage.client
        await client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            await client.config_set("maxmemory", 0)

    async def cut(self) -> str:
        """Cut every connection but ours, as a proxy does that is replaced. What was sent may be carried out."""
        tools, client = self.tools, self.tools.stage.client
        others = [row["id"] for row in await client.client_list() if text(row["name"]) != OUR_NAME]
        at = time.time()
        tools.supervisor.forgive(AFTER_PAUSE_S)
        pipeline = client.pipeline(transaction=True)  # nobody is back before the last one is cut
        for number in others:
            pipeline.execute_command("CLIENT", "KILL", "ID", number)
        cut = sum(not isinstance(reply, Exception) for reply in await pipeline.execute(raise_on_error=False))
        injected = InjectedFault(FaultKind.CUT_CONNECTIONS, f"{cut} connections", at, until=at)
        await tools.note(injected, f"{cut} connections to Redis are cut")
        return ""


def _lasts_s(fault: Fault) -> float:
    assert fault.lasts is not None
    return fault.lasts.total_seconds()
