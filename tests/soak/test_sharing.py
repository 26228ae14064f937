"""Replicas share groups at random: they are paused, killed, stopped, started and reconfigured, and streams come and go.

The journals, whose order is that of the writes, are judged: only the holder of a group recovers a job of it, and each
job is recovered once.
"""

import os
import random
from dataclasses import dataclass, field
from functools import partial

import pytest
from redis.asyncio import Redis

from tests.faults.reapers import VISIBILITY_MS, Case, start_replica
from tests.faults.scene import OF_LEASES
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.events import EventName

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]

SEEDS = int(os.environ.get("STREAM_REAPER_SHARING_SEEDS", "3"))
STEPS = 150
GROUPS = 12
REPLICAS = 3
TTL_S = 1
STREAMS, STREAMS_AT_A_TIME = 5_000, 250
MOST_WAITING = 20
"""So many jobs may wait for their recovery before the next step."""
IN_TURNS = [VISIBILITY_MS // 1000, VISIBILITY_MS // 2000]
"""Visibility timeouts (s) before and after the change of the settings. A job that stalls is overdue by both."""


@dataclass
class Tally:
    """The faults that a seed has played."""

    pauses: int = 0
    kills: int = 0
    stops: int = 0
    starts: int = 0
    terms: int = 0
    fenced: int = 0
    """Writes of replicas that had lost the lease."""


@dataclass
class Play:
    """One seed."""

    draw: random.Random
    server: RedisServer
    processes: Processes
    cases: list[Case]
    visibility_s: int = IN_TURNS[0]
    live: list[Running] = field(default_factory=list)
    former: list[Running] = field(default_factory=list)
    """Those of ``live`` that run with the former settings."""
    paused: list[tuple[Running, int]] = field(default_factory=list)
    """Replicas, and the steps at which they go on."""
    tally: Tally = field(default_factory=Tally)

    def start(self) -> None:
        """Start one replica more."""
        names = ",".join(case.keys.name for case in self.cases)
        replica = start_replica(
            self.processes, self.server, groups=names, lease_ttl=TTL_S, redelivery="retry-stream",
            visibility_timeout=self.visibility_s,
        )  # fmt: skip
        self.live.append(replica)
        self.tally.starts += 1

    async def run(self) -> None:
        """Play all steps, and then wait until the last replicas have recovered everything."""
        change_at = self.draw.randrange(STEPS)
        for _ in range(REPLICAS):
            self.start()
        for step in range(STEPS):
            if step == change_at:
                self.visibility_s, self.former = IN_TURNS[1], list(self.live)
            await self.draw.choice(self.cases).stalled(self.draw.randint(1, 3))
            self._go_on(step)
            self._disturb(step)
            room = self.draw.randrange(MOST_WAITING)
            await wait_until(partial(self._has_room, room), "jobs are recovered")
        self._go_on()
        for replica in self.former:
            replica.terminate()
            assert await replica.wait() == 0
        if not set(self.live) - set(self.former):
            self.start()
        await wait_until(self._has_room, "all jobs are recovered")

    def _disturb(self, step: int) -> None:
        what = self.draw.random()
        if len(self.live) > 1 and what < 0.45:
            replica = self.live.pop(self.draw.randrange(len(self.live)))
            if what < 0.25:
                replica.pause()
                self.paused.append((replica, step + self.draw.randint(1, 15)))
                self.tally.pauses += 1
            elif what < 0.35:
                replica.kill()
                self.tally.kills += 1
            else:
                replica.terminate()
                self.tally.stops += 1
            if replica in self.former and replica not in [one for one, _ in self.paused]:
                self.former.remove(replica)
        elif len(self.live) + len(self.paused) < REPLICAS:
            self.start()

    def _go_on(self, now: int | None = None) -> None:
        for replica, until in [one for one in self.paused if now is None or one[1] <= now]:
            self.paused.remove((replica, until))
            replica.resume()
            self.live.append(replica)

    async def _waiting(self) -> int:
        return sum([await case.pending_count() for case in self.cases])

    async def _has_room(self, room: int = 0) -> bool:
        return await self._waiting() <= room

    async def judge(self) -> None:
        """Check the history of each group, and count."""
        for case in self.cases:
            assert dict.fromkeys(case.enqueued, 1) == {job: len(by) for job, by in (await case.recovered()).items()}
            held = last = 0
            for event in await case.events(*OF_LEASES, EventName.RECOVERED):
                token = int(event.data["token"])
                if event.event == EventName.LEASE_TAKEN:
                    assert token == last + 1
                    held = last = token
                    continue
                assert token == held, f"{event} is not by the holder"
                held = 0 if event.event == EventName.LEASE_LEFT else held
            self.tally.terms += last
            self.tally.fenced += len(await case.events(EventName.FENCED))


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
async def test_only_the_holder_recovers_and_each_job_once(
    seed: int, server: RedisServer, client: Redis, processes: Processes
) -> None:
    cases = [await Case.prepared(server, client, f"orders-{number}") for number in range(GROUPS)]
    play = Play(random.Random(seed), server, processes, cases)
    try:
        await play.run()
    except AssertionError as error:
        error.add_note(f"live={play.live} paused={play.paused}, held by {[await case.holder() for case in cases]}")
        raise
    await play.judge()
    print(seed, play.tally)  # noqa: T201 - for the log of `make soak`
    assert play.tally.terms > GROUPS, "leases moved"


async def test_streams_that_come_and_go_are_served_and_leave_no_lease(
    server: RedisServer, client: Redis, processes: Processes
) -> None:
    def start() -> Running:
        return start_replica(processes, server, groups="orders-*/billing", discovery_interval=0.2, lease_ttl=TTL_S)

    async def none_is_held() -> bool:
        return not await client.exists(*(case.keys.lease for case in cases))

    replicas = [start() for _ in range(REPLICAS)]
    for first in range(0, STREAMS, STREAMS_AT_A_TIME):
        numbers = range(first, first + STREAMS_AT_A_TIME)
        cases = [await Case.prepared(server, client, f"orders-{number}") for number in numbers]
        for case in cases:
            await case.stalled(1)
        replicas.pop(0).kill()
        replicas.append(start())
        for case in cases:
            await wait_until(case.recovered, "the job is recovered")
        for case in cases:
            assert [len(tokens) for tokens in (await case.recovered()).values()] == [1]
        await client.delete(*(case.keys.stream for case in cases))
        await wait_until(none_is_held, "the replicas have let go of the streams")
