"""Faults that hit Redis itself."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

import anyio

from reaper.drill.faults import AFTER_PAUSE_S, Fault
from reaper.drill.records import Effect, InjectedFault
from reaper.drill.toolbox import Toolbox


@dataclass(slots=True)
class ServerFaults:
    """Each method injects one fault, and returns why it could not, or nothing."""

    tools: Toolbox

    async def pause(self, fault: Fault) -> str:
        """Stop the server's process: connections stay open, and it does not answer."""
        pid, seconds = self.tools.stage.server.pid, fault.lasts_s
        assert pid is not None
        injected = InjectedFault(fault.kind, f"process {pid}", time.time(), effect=Effect.AWAY)
        await self.tools.note(injected, f"Redis is stopped for {seconds:g} s")
        self.tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
        try:
            os.kill(pid, signal.SIGSTOP)
            await anyio.sleep(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.tools.over(injected, "Redis goes on")
        return ""

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

    async def restart(self, fault: Fault) -> str:
        """Kill the server, and start it again after a while. Raises NoServerError."""
        tools, server = self.tools, self.tools.stage.server
        injected = InjectedFault(fault.kind, f"process {server.pid}", time.time(), effect=Effect.AWAY)
        await tools.note(injected, f"kill -9 of Redis; it is away for {fault.lasts_s:g} s")
        tools.supervisor.forgive(fault.lasts_s + AFTER_PAUSE_S)
        async with tools.writing_nothing():
            await server.restart(fault.lasts_s)
        tools.over(injected, "Redis is there again")
        return ""
