"""Somebody trims or deletes entries together with their pending references, while jobs run (Redis 8.2 and later).

No trace is left on the server, so it looks as if somebody else had settled the job: its worker names it, and stops.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.faults import scene
from tests.faults.scene import STREAM
from tests.support.modes import EMBEDDED_IN_PLACE, mode_settings
from tests.support.servers import RedisServer
from tests.support.tiers import WITH_CLAIM, by_claim, in_matrix
from tests.support.waiting import wait_until
from workers import Job

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.contract,
    pytest.mark.only_on("8.2.", *WITH_CLAIM),
    pytest.mark.usefixtures("hurried"),
]

Delete = Callable[[Redis, str], Awaitable[Any]]


async def by_trimming(client: Redis, _entry: str) -> None:
    await client.execute_command("XTRIM", STREAM, "MAXLEN", "=", 0, "DELREF")


async def by_deleting(client: Redis, entry: str) -> None:
    await client.execute_command("XDELEX", STREAM, "DELREF", "IDS", 1, entry)


WAYS = [by_trimming, by_deleting]
in_every_mode = pytest.mark.parametrize("mode", ["reaper", in_matrix("embedded"), by_claim(EMBEDDED_IN_PLACE)])


@pytest.mark.parametrize("delete", WAYS)
@in_every_mode
async def test_a_running_job_is_stopped_and_named(
    server: RedisServer, client: Redis, mode: str, delete: Delete, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the entry nor its delivery is left, which looks as if somebody else had settled the job."""
    await scene.create_group(client)
    handler = scene.Handler()
    [job] = await scene.enqueue(client, 1, hold="")
    async with scene.running_worker(server.url, handler, **mode_settings(mode)) as worker:
        await handler.has_started(1)
        await delete(client, job)
        await wait_until(lambda: worker.counts.rejected == 1, "the worker is told")
        others = await scene.enqueue(client, 2)
        await wait_until(lambda: worker.counts.acked == 2, "other jobs are run")
    assert {done.job for done in handler.completions} == set(others)
    [line] = [record.getMessage() for record in caplog.records if "settlement rejected" in record.getMessage()]
    assert f"job={job} " in line
    assert "verb=extension" in line


@pytest.mark.parametrize("delete", WAYS)
@in_every_mode
async def test_the_settlement_of_a_job_that_ends_before_that_is_rejected_and_journaled(
    server: RedisServer, client: Redis, mode: str, delete: Delete
) -> None:
    await scene.create_group(client)
    [job] = await scene.enqueue(client, 1)

    async def handle(_job: Job) -> None:
        await delete(client, job)

    async with scene.running_worker(server.url, handle, **mode_settings(mode)) as worker:
        await wait_until(lambda: worker.counts.rejected == 1, "the ack is rejected")
    [event] = await scene.events(client, "rejected")
    assert (event.job, event.data["verb"]) == (job, "ack")
