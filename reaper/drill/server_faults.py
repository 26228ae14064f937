"""The fault that hits Redis itself."""

import time

import anyio

from reaper.drill.faults import AFTER_PAUSE_S, Fault
from reaper.drill.records import Effect, InjectedFault
from reaper.drill.toolbox import Toolbox


async def pause_redis(tools: Toolbox, fault: Fault) -> str:
    """Stop the process of the server. Connections stay open, and it does not answer. Always returns an empty string."""
    process, seconds = tools.stage.server.process, fault.lasts_s
    assert process
    injected = InjectedFault(fault.kind, f"process {process.pid}", time.time(), effect=Effect.AWAY)
    await tools.note(injected, f"Redis is stopped for {seconds:g} s")
    tools.supervisor.forgive(seconds + AFTER_PAUSE_S)
    try:
        process.pause()
        await anyio.sleep(seconds)
    finally:
        process.resume()
    tools.over(injected, "Redis goes on")
    return ""
