"""A stream that has the last possible entry ID: Redis rejects a range behind it, and everything else goes on."""

from typing import Any

import pytest
from redis.asyncio import Redis

from tests.faults.reapers import Case, holding, quick_settings
from tests.operator.conftest import run_command
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers import Job, Worker
from workers.protocol.messages import LAST_ENTRY_ID

pytestmark = [pytest.mark.anyio, pytest.mark.contract]

LAST = LAST_ENTRY_ID.decode()
HIGH = "18446744073709551615-5"


async def prepared(server: RedisServer, client: Redis, *entry_ids: str) -> Case:
    """A group whose consumer w1 has stalled with these entries."""
    case = await Case.prepared(server, client)
    for entry_id in entry_ids:
        await client.execute_command("XADD", "orders", entry_id, "n", 1)
    await case.read("w1")
    await case.make_overdue("w1")
    return case


async def test_the_operators_commands_work(server: RedisServer, client: Redis) -> None:
    await prepared(server, client, "1-0", LAST)
    status = await run_command(server.url, "status", "--groups", "orders/billing")
    assert "ready 0 · pending 2" in status.out
    doctor = await run_command(server.url, "doctor", "--groups", "orders/billing")
    assert (doctor.code, doctor.err) == (1, "")
    for entry_id in ("1-0", LAST):
        explained = await run_command(server.url, "explain", entry_id, "--group", "orders/billing", "-o", "json")
        assert explained.code == 0, explained.err


@pytest.mark.parametrize("entry_ids", [("1-0", LAST), (HIGH, LAST), (HIGH,)], ids=str)
async def test_a_holder_recovers_what_stalls_there(
    server: RedisServer, client: Redis, entry_ids: tuple[str, ...]
) -> None:
    case = await prepared(server, client, *entry_ids)
    async with holding(quick_settings(server, redelivery="retry-stream")) as replica:

        async def copies() -> bool:
            return int(await client.xlen(case.keys.retry)) == len(entry_ids)

        await wait_until(copies, "all are recovered")
        assert replica.errors == []


@pytest.mark.parametrize(
    ("reader", "settings"),
    [
        ("", {}),
        ("w.0123456789ab", {"name": "w", "recovery": "embedded", "visibility_timeout": 3_600}),
        ("w1", {"recovery": "embedded", "visibility_timeout": 1}),
    ],
    ids=["reads", "makes overdue", "recovers"],
)
async def test_a_worker_does_what_is_there(
    server: RedisServer, client: Redis, reader: str, settings: dict[str, Any]
) -> None:
    case = await Case.prepared(server, client)
    for entry_id in ("1-0", LAST):
        await client.execute_command("XADD", "orders", entry_id, "n", 1)
    if reader:
        await case.read(reader)
    if reader == "w1":  # otherwise its worker does that, because an earlier process has read them
        await case.make_overdue(reader)
    worker = Worker("orders", "billing", redis_url=server.url, redelivery="retry-stream", backoff_base=0, **settings)
    failed, done = set[str](), set[str]()

    @worker.handler
    async def handle(job: Job) -> None:
        if job.id not in failed:
            failed.add(job.id)
            raise ValueError("the first time")
        done.add(job.id)
        if len(done) == 2:
            worker.stop()

    await worker.run()
    assert done == {"1-0", LAST}
    assert await case.pending_count() == 0
