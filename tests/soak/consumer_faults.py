"""A fault of one consumer: a third party deletes it with its deliveries, and Redis reports it to no process."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reaper.drill import queries
from reaper.drill.faults import Fault
from reaper.drill.records import InjectedFault, ProcessRun, Role
from reaper.drill.toolbox import PATIENCE_S, Toolbox
from reaper.drill.worker_faults import NOBODY_BUSY, WorkerFaults
from tests.soak import questions
from workers.protocol.events import EventName
from workers.protocol.keys import MARKER_CONSUMER
from workers.protocol.messages import Pending, counted, text

MOST = 10_000
"""Most deliveries of one consumer to read, more than any worker of a drill has."""
SCANS = 2
"""Full scans until the holder knows the last deliveries of the dead worker. One may have begun before its death."""
SCANNED_S = 5.0
"""Longest wait for a full scan. In a chaos, no replica may hold the lease."""
APART_MS = 100
"""Least time between two full scans. Less is the error of measuring."""
TOLD_S = 90.0
"""Until the registration of a dead worker has ended, and maintenance has run since, once in 33 s in embedded mode."""
REPORTED_S = 2.0
"""A holder that reports the consumer also reports each delivery, some moments later. No other process does."""


@dataclass(slots=True)
class ConsumerFaults:
    """Injects the fault, and waits for its effects."""

    tools: Toolbox
    workers: WorkerFaults

    async def delete(self, fault: Fault) -> str:
        """Delete the consumer of the stream-reaper worker with the most jobs. Return the reason if that fails."""
        tools, is_killed = self.tools, fault.amount == "killed"

        async def hit() -> tuple[ProcessRun, bytes, list[Pending]] | None:
            found = await self.workers.busiest(1, Role.WORKER)
            if not found or (is_killed and not await self.workers.kill_if_it_may_crash(found[0])):
                return None
            if is_killed and tools.stage.recovery.by_reapers:
                await self._wait_for_scans()
            deleted = await self._delete_consumer(found[0])
            return deleted and (found[0], *deleted)

        victim = await tools.once(hit)
        if not victim:
            return NOBODY_BUSY
        run, consumer, dropped = victim
        held = await queries.fields_of(tools.stage, [row.entry_id for row in dropped])
        injected = InjectedFault(
            fault.kind,
            run.name,
            run.killed_at or time.time(),
            in_flight=len(dropped),
            jobs=tuple(int(fields.get(b"n", 0)) for fields in held),
        )
        how = "killed, and its consumer deleted" if is_killed else "alive, and its consumer is deleted"
        await tools.note(injected, f"worker {run.name} is {how}, with {counted(len(dropped), 'job')} in flight")
        if is_killed:
            await tools.within(TOLD_S, lambda: self._is_told(consumer))
            await tools.within(REPORTED_S, lambda: self._are_told(dropped))
        else:
            await tools.within(PATIENCE_S, lambda: questions.are_held_again(tools, dropped))
        tools.over(injected)
        return ""

    async def _wait_for_scans(self) -> None:
        """Wait until the holder has scanned all of the group. After each full scan it makes its marker anew."""

        async def made_ms() -> int:
            stage = self.tools.stage
            seconds, micros = await stage.client.time()
            for consumer in await stage.client.xinfo_consumers(stage.keys.stream, stage.keys.group):
                if text(consumer["name"]) == MARKER_CONSUMER:
                    return int(seconds) * 1000 + int(micros) // 1000 - int(consumer["idle"])
            return 0

        async def is_made_after(moment_ms: int) -> bool:
            return await made_ms() > moment_ms + APART_MS

        for _ in range(SCANS):
            await self.tools.within(SCANNED_S, partial(is_made_after, await made_ms()))

    async def _delete_consumer(self, run: ProcessRun) -> tuple[bytes, list[Pending]] | None:
        """Delete the consumer of a process. Return its name and its deliveries, or None without deliveries."""
        stage = self.tools.stage
        stream, group = stage.keys.stream, stage.keys.group
        held = (await queries.pending_by_process(stage, [run.name]))[run.name]
        if not held:
            return None
        consumer = held[0].consumer
        pipeline = stage.client.pipeline(
            transaction=True
        )  # no delivery comes or goes between the read and the deletion
        pipeline.execute_command("XPENDING", stream, group, "-", "+", MOST, consumer)
        pipeline.execute_command("XGROUP", "DELCONSUMER", stream, group, consumer)
        rows: Any = (await pipeline.execute())[0]
        dropped = [Pending(*row) for row in rows]
        return (consumer, dropped) if dropped else None

    async def _is_told(self, consumer: bytes) -> bool:
        """Return whether a process has reported that this consumer was deleted."""
        return any(
            event.event == EventName.LOST_CONSUMER and event.data.get("consumer") == text(consumer)
            for event in self.tools.witness.events
        )

    async def _are_told(self, dropped: Sequence[Pending]) -> bool:
        """Return whether a process has reported each of these deliveries."""
        told = {
            event.data.get("entry") for event in self.tools.witness.events if event.event == EventName.LOST_DELIVERY
        }
        return all(text(row.entry_id) in told for row in dropped)
