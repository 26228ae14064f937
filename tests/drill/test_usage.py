"""Resources that processes and the server have used."""

import os
import time
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from reaper.drill.meters import Meters, Usage, cpu_s
from reaper.drill.records import ProcessRun, Role
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client

pytestmark = pytest.mark.anyio


def test_the_cpu_time_of_a_process_is_the_one_it_knows_of_itself() -> None:
    before = time.process_time()
    told = cpu_s(os.getpid())
    assert before <= told <= time.process_time()


async def test_cpu_time_is_added_up_by_kind_of_process_the_dead_included(client: Redis) -> None:
    runs = [
        ProcessRun("w1-1", Role.WORKER, 1, 0.0, ended_at=1.0, cpu_s=0.5),
        ProcessRun("w1-2", Role.WORKER, 2, 1.0, cpu_s=0.25),
        ProcessRun("r1-1", Role.REAPER, 3, 0.0, cpu_s=1.0),
    ]
    assert (await Meters(client).read(runs)).cpu_s == {"worker": 0.75, "reaper": 1.0}


def test_usage_is_the_difference_of_two_readings() -> None:
    before = Usage(10.0, {"worker": 1.0}, 5, 1.0, "life")
    after = Usage(12.0, {"worker": 3.0, "reaper": 0.5}, 9, 1.5, "life")
    used = {"worker": 2.0, "reaper": 0.5}
    assert after.since(before) == Usage(2.0, used, 4, 0.5)
    assert replace(after, server_run="next life").since(before) == Usage(2.0, used, None, None)


async def test_requests_of_others_are_told_from_our_own(server: RedisServer, client: Redis) -> None:
    ours = commands_client(server.url, max_connections=1)
    meters = Meters(ours)
    try:
        await client.ping()  # connected, so that no handshake is counted below
        await meters.read([])
        before = await meters.read([])
        for _ in range(7):
            await client.ping()
            await ours.ping()
        async with ours.pipeline(transaction=True) as pipeline:
            for _ in range(2):
                pipeline.execute_command("PING")
            await pipeline.execute()
        used = (await meters.read([])).since(before)
    finally:
        await ours.aclose()
    assert (used.requests, used.cpu_s) == (7, {})
    assert (used.redis_cpu_s or 0.0) >= 0
    assert used.seconds > 0
