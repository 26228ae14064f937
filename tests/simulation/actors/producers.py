"""The producers."""

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from tests.simulation import plays
from tests.simulation.actors.actor import AGAIN_S, Actor
from tests.simulation.loop import Process
from tests.simulation.places import STREAM, URL
from tests.simulation.story import NewJob
from workers.producer import Producer
from workers.protocol.errors import StreamReaperError
from workers.protocol.messages import text

if TYPE_CHECKING:
    from tests.simulation.world import World


class Producers(Actor):
    """Enqueues each job of the story, again and again until Redis has accepted it."""

    supervised = False

    def __init__(self, world: "World", role: str) -> None:
        super().__init__(world, role)
        self.left = len(world.story.jobs)

    async def run(self, process: Process) -> None:  # noqa: ARG002
        async with Producer(STREAM, URL) as producer, asyncio.TaskGroup() as tasks:
            for job in self.world.story.jobs:
                tasks.create_task(self._enqueue(producer, job))

    async def _enqueue(self, producer: Producer, job: NewJob) -> None:
        payload: dict[Any, Any] = {b"number": b"%d" % job.number, plays.FIELD: plays.written(job.play)}
        await asyncio.sleep(job.at)
        while True:
            asked_at = self.world.loop.now
            try:
                if job.bare:
                    job_id = text(await producer._client.xadd(STREAM, payload))
                else:
                    job_id = await producer.enqueue(payload, job_id=job.name, delay=job.delay, timeout=job.timeout)
            except (RedisError, OSError, StreamReaperError) as error:
                self.world.say(f"{job.name} is not enqueued: {error}")
                if job.bare:
                    break  # unknown, and a second entry would be another job
                await asyncio.sleep(AGAIN_S)
            else:
                self.world.losses.was_accepted(job_id, list(payload.items()), asked_at)
                break
        self.left -= 1
