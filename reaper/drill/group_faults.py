"""Faults that hit the group itself: what it has agreed on, while everybody is healthy."""

import time
from dataclasses import dataclass

from reaper.drill import queries
from reaper.drill.faults import SHORTENED, FaultKind
from reaper.drill.records import InjectedFault, Role
from reaper.drill.toolbox import PATIENCE_S, Toolbox

STARTED_S = 10.0
"""A follower this old listens to SIGHUP; a younger one might end of it, and reads its settings just now."""


@dataclass(slots=True)
class GroupFaults:
    """Each method injects one fault, and returns why it could not, or nothing."""

    tools: Toolbox

    async def shorten_visibility(self) -> str:
        """Shorten the visibility timeout, as an operator does: no worker is told."""
        tools, stage = self.tools, self.tools.stage
        seconds, at = tools.visibility_s / SHORTENED, time.time()
        agreed_ms = str(round(seconds * 1000))
        if stage.recovery.by_reapers:
            stage.set_visibility(seconds)
            holder = await queries.holder(stage)
            for run in tools.supervisor.alive(Role.REAPER):
                if queries.belongs_to(holder, run.name) or at - run.started_at > STARTED_S:
                    tools.supervisor.reload(run)
        else:
            await stage.client.hset(stage.keys.agreement, "visibility_ms", agreed_ms)

        async def is_agreed() -> bool:
            return await stage.client.hget(stage.keys.agreement, "visibility_ms") == agreed_ms.encode()

        if not await tools.within(PATIENCE_S, is_agreed):
            return "no leader has taken the new settings over"
        await tools.note(
            InjectedFault(FaultKind.SHORTEN_VISIBILITY, f"{seconds:g} s", at),
            f"the visibility timeout is {seconds:g} s from now on, was {tools.visibility_s:g}",
        )
        return ""
