"""The operators."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from reaper.operations.drain import drain
from reaper.operations.groups import forget, set_paused
from reaper.operations.ready_again import ReadyAgain
from tests.simulation.loop import Process
from tests.simulation.places import KEYS, NAMESPACE, URL
from workers.protocol.connection import commands_client
from workers.protocol.errors import StreamReaperError
from workers.protocol.messages import text

if TYPE_CHECKING:
    from tests.simulation.world import World


class Operators:
    """The actions of people on the command line."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._errands = 0

    def let(self, what: str, errand: Callable[[], Awaitable[None]]) -> None:
        """Let an operator do something, in a process of its own."""
        self._errands += 1
        process = Process(self._world.loop, f"operator#{self._errands}", role="operator")

        async def run() -> None:
            try:
                await errand()
            except (StreamReaperError, OSError) as error:
                self._world.say(f"An operator failed to {what}: {error}")
            except Exception as error:  # noqa: BLE001
                self._world.say(f"An operator failed to {what}: {error!r}")

        process.start(run())

    async def set_paused(self, paused: bool) -> None:
        """Pause recovery of the group, or resume it."""
        async with aclosing(commands_client(URL)) as client:
            await set_paused(client, KEYS, paused)

    async def brake(self, seconds: float) -> None:
        """Pause recovery for some time."""
        await self.set_paused(True)
        await asyncio.sleep(seconds)
        while True:  # the operator who paused recovery resumes it for certain
            try:
                return await self.set_paused(False)
            except (RedisError, StreamReaperError, OSError):
                await asyncio.sleep(1)

    async def drain(self, replica_id: str, seconds: float) -> None:
        """Let a replica hand its groups over, and take none for some time."""
        async with aclosing(commands_client(URL)) as client:
            await drain(client, NAMESPACE, replica_id, round(seconds * 1000))

    async def forget(self) -> None:
        """Remove the keys of the group. Rejected while a replica or workers serve it."""
        async with aclosing(commands_client(URL)) as client:
            await forget(client, KEYS, namespace=NAMESPACE.namespace)
        self._world.drops.forgotten()
        self._world.losses.of_writes = True  # the journal and the counters

    async def redrive_all(self) -> None:
        """Redrive all dead letters."""
        async with aclosing(commands_client(URL)) as client:
            rows: Any = await client.xrange(KEYS.dead)
            async for _ in ReadyAgain(client, KEYS).redrive([text(entry_id) for entry_id, _ in rows]):
                pass
