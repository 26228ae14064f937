"""A bare worker."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from reaper.drill.promises import Execution
from tests.simulation import plays
from tests.simulation.actors.actor import AGAIN_S, Actor
from tests.simulation.loop import Process
from tests.simulation.patience import block_ms
from tests.simulation.places import GROUP, KEYS, STREAM, URL
from tests.simulation.story import IN_PLACE
from workers.protocol.connection import reader_client
from workers.protocol.keys import RETURNED_CONSUMER
from workers.protocol.messages import pair_up, read_metadata, text

CLAIMED_MS = 10**9
"""A bare worker claims entries that are ready in place, which look idle for this long."""


class BareWorker(Actor):
    """A worker as in the documentation, which reads, runs and acknowledges one job at a time."""

    async def run(self, process: Process) -> None:
        client = reader_client(URL)
        while True:
            try:
                for key in (STREAM, KEYS.retry):
                    try:
                        await client.xgroup_create(key, GROUP, "0", mkstream=True)
                    except ResponseError as error:
                        if "BUSYGROUP" not in str(error):
                            raise
                while True:
                    await self._once(client, process)
            except (RedisError, OSError):
                await client.connection_pool.disconnect()
                await asyncio.sleep(AGAIN_S)

    async def _once(self, client: Redis, process: Process) -> None:
        reply = await client.execute_command(
            "XREADGROUP",
            "GROUP",
            GROUP,
            process.name,
            "COUNT",
            1,
            "BLOCK",
            block_ms(self.world.story.setting),
            *(("CLAIM", CLAIMED_MS) if self.world.story.setting.redelivery == IN_PLACE else ()),
            "STREAMS",
            STREAM,
            KEYS.retry,
            ">",
            ">",
        )
        read = [(source, *entry) for source, entries in reply or () for entry in entries]
        for number, (source, entry_id, flat, *told) in enumerate(read):
            if told and told[0] < 0:  # the server's clock was set back, and another consumer has the entry
                words = ("XCLAIM", source, GROUP, RETURNED_CONSUMER, 0, entry_id, "RETRYCOUNT", told[1], "JUSTID")
                await client.execute_command(*words)
                continue
            execution = _execution(entry_id, flat)
            waiting = [_execution(*later[1:3]) for later in read[number + 1 :]]
            if await self._play(process, execution, flat, waiting):
                try:
                    async with client.pipeline(transaction=True) as together:
                        together.execute_command("XACK", source, GROUP, entry_id)
                        if source == KEYS.retry.encode():
                            together.execute_command("XDEL", source, entry_id)
                        await together.execute()
                except (RedisError, OSError):  # it does not try again
                    self.world.ledger.blame(execution)
                    raise

    async def _play(self, process: Process, execution: Execution, flat: Any, waiting: Sequence[Execution]) -> bool:
        ledger = self.world.ledger
        own = [pair for pair in pair_up(flat) if not pair[0].startswith(b"reaper.")]
        ledger.payloads.setdefault(execution.job, own)
        act = ledger.start(execution, process.name, plays.read(dict(own)[plays.FIELD]))
        done = act.verb in (plays.OK, plays.EXTEND, plays.SWALLOW, plays.BLOCK)
        if not done or act.seconds > self.world.story.setting.visibility_s * 0.2:
            # No heartbeat comes for it, nor for the entries that wait behind it. The timeout may be shortened.
            for without_heartbeat in (execution, *waiting):
                ledger.blame(without_heartbeat)
        try:
            if act.verb != plays.HANG:
                await asyncio.sleep(act.seconds)
            if act.verb == plays.KILL:
                self.world.say(f"A job kills {process.name}.")
                self.world.kill(self.role, again_after_s=2.0, by=execution)
                await asyncio.get_running_loop().create_future()
            if done:
                ledger.complete(execution)
            return done
        finally:
            ledger.leave(execution, process.name)


def _execution(entry_id: bytes, flat: Any) -> Execution:
    metadata = read_metadata(entry_id, pair_up(flat))
    return Execution(text(metadata.job_id), metadata.generation)
