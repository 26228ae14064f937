"""Faults of the group itself, or of its settings, while all processes are healthy."""

import os
import signal
import time
from dataclasses import dataclass

from reaper.drill import queries
from reaper.drill.faults import Fault
from reaper.drill.records import Effect, InjectedFault, Role
from reaper.drill.toolbox import PATIENCE_S, Toolbox
from tests.soak import questions
from tests.soak.kinds import SHORTENED
from tests.soak.settings import SoakSettings
from workers.protocol.messages import counted


@dataclass(slots=True)
class GroupFaults:
    """Each method injects one fault, and returns why it could not, or nothing."""

    tools: Toolbox

    async def shorten_visibility(self, fault: Fault) -> str:
        """Shorten the visibility timeout, as an operator does by a restart of the reapers. No worker is told."""
        tools, stage = self.tools, self.tools.stage
        seconds, at = tools.visibility_s / SHORTENED, time.time()
        in_force_ms = str(round(seconds * 1000))
        if stage.recovery.by_reapers:
            assert isinstance(stage.settings, SoakSettings)
            stage.settings.write_reaper_settings(stage.reaper_settings, seconds)
            for run in tools.supervisor.alive(Role.REAPER):
                run.stopped = True
                os.kill(run.pid, signal.SIGTERM)
        else:
            await stage.client.hset(stage.keys.settings, "visibility_ms", in_force_ms)

        async def has_settings() -> bool:
            return await stage.client.hget(stage.keys.settings, "visibility_ms") == in_force_ms.encode()

        if not await tools.within(PATIENCE_S, has_settings):
            return "no holder has written the new settings"
        await tools.note(
            InjectedFault(fault.kind, f"{seconds:g} s", at),
            f"the visibility timeout is {seconds:g} s from now on, was {tools.visibility_s:g}",
        )
        return ""

    async def destroy(self, fault: Fault) -> str:
        """Destroy the group: Redis forgets what was pending, and where it stood."""
        tools, keys = self.tools, self.tools.stage.keys
        held = await queries.pending(tools.stage)
        injected = InjectedFault(
            fault.kind, f"group {keys.group}", time.time(), in_flight=len(held), effect=Effect.FORGETS
        )
        await tools.stage.client.xgroup_destroy(keys.stream, keys.group)
        await tools.note(injected, f"the group is destroyed, with {counted(len(held), 'job')} in flight")
        # Until then the drill may seem to be over.
        await tools.within(PATIENCE_S, lambda: questions.are_held_again(tools, held))
        tools.over(injected)
        return ""
