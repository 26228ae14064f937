"""Streams of a pattern are found, served and dropped while replicas run, and people add groups."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.operations.acl import Role, rules_of
from reaper.replicas import SCANNED
from reaper.service import Reaper
from reaper.watched import read_found
from tests.faults.deliveries import read_long_ago
from tests.faults.scene import NAMESPACE, OVERDUE_MS, running_reaper
from tests.operator.conftest import run_command
from tests.support.beats import let_beat
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys
from workers.protocol.messages import RecoveryMode, text

pytestmark = pytest.mark.anyio

PATTERN = "orders:*/billing"
OFTEN: dict[str, Any] = {"groups": PATTERN, "discovery_interval": 0.2}
PASSWORD = "not-a-secret"  # noqa: S105 - of a user that lives for one test


async def stall(client: Redis, stream: str) -> None:
    """Make a stream with a group, and let a job be overdue there."""
    await client.xgroup_create(stream, "billing", "0", mkstream=True)
    await let_beat(client, group_keys(stream, "billing"))
    await client.xadd(stream, {"n": "1"})
    assert len(await read_long_ago(client, stream, "billing", "gone", 1, OVERDUE_MS)) == 1


async def is_recovered(client: Redis, *streams: str) -> None:
    """Wait until the job of each stream is recovered."""

    async def all_are() -> bool:
        counts = [await client.hget(group_keys(stream, "billing").settings, "recovered") for stream in streams]
        return all(counts)

    await wait_until(all_are, "the jobs are recovered")


async def watches(reaper: Reaper, *streams: str) -> None:
    """Wait until the replica watches the group of exactly these streams."""
    groups = {f"{stream}/billing" for stream in streams}
    await wait_until(lambda: set(reaper.watched) == groups, f"it watches {len(groups)} groups")


async def test_a_stream_that_appears_is_served_and_one_that_is_deleted_is_dropped(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reaper")
    await stall(client, "orders:1")
    async with running_reaper(server.url, **OFTEN) as reaper:
        await is_recovered(client, "orders:1")
        await stall(client, "orders:2")
        await client.xgroup_create("orders:3", "audit", mkstream=True)
        await is_recovered(client, "orders:2")
        await watches(reaper, "orders:1", "orders:2")
        assert await read_found(client, NAMESPACE) == {"orders:1/billing": PATTERN, "orders:2/billing": PATTERN}
        await client.delete("orders:1")
        await client.xgroup_destroy("orders:2", "billing")
        await watches(reaper)
        await wait_until(lambda: reaper.held == 0, "it holds no lease")
        assert reaper.has_worked
    said = [record.getMessage() for record in caplog.records if "groups changed" in record.getMessage()]
    assert "watched groups changed: change=added number=1 groups=orders:2/billing" in said
    assert "orders:1/billing" in "".join(line for line in said if "change=removed" in line)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_person_adds_a_group_and_removes_it(server: RedisServer, client: Redis) -> None:
    await stall(client, "mail")
    await client.xgroup_create("orders", "billing", mkstream=True)
    async with running_reaper(server.url) as reaper:
        await watches(reaper, "orders")
        assert (await run_command(server.url, "watch", "add", "mail/billing")).out == "mail/billing: watched\n"
        await is_recovered(client, "mail")
        await client.delete("mail")
        assert (await run_command(server.url, "watch", "list")).out == "mail/billing  added\n"
        assert (await run_command(server.url, "watch", "remove", "mail/billing")).code == 0
        await watches(reaper, "orders")


async def let_in(client: Redis, server: RedisServer, user: str, *words: str) -> str:
    """Make a user with the rights of a reaper of the pattern, and others. Return the URL of its connection."""
    rules = rules_of(Role.REAPER, RecoveryMode.REAPER, [group_keys("orders:*", "billing")], [NAMESPACE]).words
    await client.execute_command("ACL", "SETUSER", user, "reset", "on", f">{PASSWORD}", *rules, *words)
    return f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}/0"


@pytest.fixture
async def with_users(client: Redis) -> object:
    """Remove the users at the end."""
    yield
    await client.execute_command("ACL", "DELUSER", "scanning", "blind")


@pytest.mark.usefixtures("with_users")
async def test_one_replica_with_the_right_to_scan_is_enough(server: RedisServer, client: Redis) -> None:
    await client.execute_command("ACL", "LOG", "RESET")
    scanning, blind = await let_in(client, server, "scanning"), await let_in(client, server, "blind", "-scan")
    await stall(client, "orders:1")
    async with running_reaper(blind, **OFTEN) as first:
        await wait_until(lambda: "scan" in first._registry.discovery.scan, "it has no right to scan")
        assert (first.has_worked, first.denials) == (True, [])

        async def is_told() -> bool:
            status = await run_command(server.url, "status")
            return "no replica can scan for the streams of patterns: " in status.out

        await wait_until(is_told, "status says so")
        await let_beat(client, group_keys("orders:1", "billing"))  # a slow machine makes a gap, and recovery waits
        async with running_reaper(scanning, **OFTEN) as second:
            await is_recovered(client, "orders:1")
            await watches(first, "orders:1")
            await watches(second, "orders:1")
            await client.delete("orders:1")
            await watches(first)
            assert second._registry.discovery.scan == SCANNED
    denied: Any = await client.acl_log()
    things = {text(entry["object"]) for entry in denied} - {
        "client|setinfo"
    }  # redis-py says its name, which is not needed
    assert things == {"scan"}


def streams(first: int, last: int) -> Sequence[str]:
    """Return the names of streams."""
    return [f"orders:{number}" for number in range(first, last)]
