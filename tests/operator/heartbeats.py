"""Heartbeats written by hand, as replicas write them."""

from typing import Any

from redis.asyncio import Redis

from reaper.replicas import GroupReport, Replica
from tests.scripts.scene import HOLDER, Scene
from workers.protocol.keys import group_keys, namespace_keys

KEYS = namespace_keys("reaper")
GROUP = group_keys("orders", "billing")
TOKEN = 7
SELDOM_MS = 3_600_000
"""Time between heartbeats of replicas that are alive as long as a test lasts."""


def a_report(**values: Any) -> GroupReport:
    """Return what the holder of orders/billing says of it when all is well."""
    usual: dict[str, Any] = {
        "group": "orders/billing",
        "visibility_ms": 30_000,
        "max_deliveries": 3,
        "redelivery": "stream",
        "token": TOKEN,
        "scan_interval_ms": 1_000,
    }
    return GroupReport(**(usual | values))


def a_replica(name: str, *reports: GroupReport, at_ms: int, **values: Any) -> Replica:
    """Return the heartbeat of a replica that watches orders/billing."""
    usual: dict[str, Any] = {
        "id": f"{name}-1-abc",
        "name": name,
        "host": "here",
        "pid": 1,
        "version": "0.2.0",
        "settings": "5e771965",
        "started_ms": at_ms - 60_000,
        "at_ms": at_ms,
        "heartbeat_ms": 5_000,
        "watched": 1,
        "held": sum(bool(report.token) for report in reports),
        "groups": {report.group: report for report in reports},
    }
    return Replica(**(usual | values))


async def register(client: Redis, *replicas: Replica, groups: str = GROUP.name) -> None:
    """Write heartbeats of replicas that watch ``groups``."""
    for replica in replicas:
        await client.hset(KEYS.replicas, replica.id, replica.to_json())
        await client.hset(KEYS.groups, replica.id, groups)


async def serve(scene: Scene, /, **in_force: Any) -> None:
    """Let ``alice`` serve orders/billing, with heartbeats that are served, and a scan a moment ago."""
    usual: dict[str, Any] = {"policy": "stream", "visibility_ms": 30_000, "max_deliveries": 3, "recovery": "reaper"}
    await scene.set_settings(**(usual | in_force))
    await scene.beats()
    now = await scene.now_ms()
    report = a_report(last_scan_ms=now - 200, timers=4, recovered=5)
    await hold(scene.client, report, now_ms=now)


async def hold(client: Redis, *reports: GroupReport, now_ms: int, **values: Any) -> None:
    """Let ``alice`` hold orders/billing, which ``bob`` watches too; both have a heartbeat that is fresh for hours."""
    alice = a_replica("alice", *reports, at_ms=now_ms, **{"heartbeat_ms": SELDOM_MS, **values})
    await client.set(GROUP.lease, HOLDER, px=SELDOM_MS)
    await client.hset(GROUP.settings, "token", str(TOKEN))
    await register(client, alice, a_replica("bob", at_ms=now_ms, heartbeat_ms=SELDOM_MS))
