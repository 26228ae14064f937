"""Heartbeats of replicas, and ``reaper drain``."""

import json

import pytest
from redis.asyncio import Redis

from reaper.replicas import Replica, parse_replicas
from tests.faults.scene import create_group, holds, running_reaper
from tests.operator.conftest import Command
from tests.operator.heartbeats import KEYS, SELDOM_MS, a_replica, a_report, hold, register
from tests.scripts.scene import Scene
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

NOW = 1_766_000_000_000


def test_fields_of_a_newer_version_are_ignored_and_those_an_older_one_lacks_filled_in() -> None:
    replica = a_replica("alice", a_report(), at_ms=NOW)
    raw = json.loads(replica.to_json())
    raw["mood"] = raw["groups"]["orders/billing"]["mood"] = "sunny"
    assert {"terms", "observe"}.isdisjoint(raw), "a default is not written"
    assert Replica.from_json(json.dumps(raw)) == replica


TOO_LARGE = a_replica("alice", at_ms=NOW).to_json().replace(str(NOW), "1" + "0" * 400, 1).encode()
"""Sooner or later somebody would divide it."""


@pytest.mark.parametrize("garbage", [b"", b"\xff", b"3", b"[]", b"{}", b'{"id":"x"}', TOO_LARGE])
def test_what_is_no_heartbeat_is_rejected_and_left_out(garbage: bytes) -> None:
    with pytest.raises(ValueError, match="Replica"):
        Replica.from_json(garbage)
    replica = a_replica("alice", at_ms=NOW)
    assert parse_replicas([garbage, replica.to_json().encode()]) == (replica,)


# --- reaper replicas


async def test_the_replicas_are_listed_without_their_groups(scene: Scene, reaper: Command) -> None:
    now = await scene.now_ms()
    await register(scene.client, a_replica("dave", at_ms=now - 60_000), a_replica("alice", a_report(), at_ms=now))
    listed, shown = await reaper("replicas"), await reaper("replicas", "-o", "json")
    assert (listed.code, shown.code) == (0, 0)
    assert "1 live · 1 silent" in listed.out
    assert listed.out.splitlines()[-1].split()[:5] == ["alice-1-abc", "·", "holds", "1", "of"]
    assert [(one["id"], one["live"]) for one in shown.data] == [("alice-1-abc", True), ("dave-1-abc", False)]
    assert (await reaper("replicas", "--observe", "-o", "json")).data == []


# --- reaper drain


async def test_a_drained_replica_hands_its_groups_over(server: RedisServer, client: Redis, reaper: Command) -> None:
    await create_group(client)
    async with running_reaper(server.url, name="alice", heartbeat_interval=1) as alice:
        assert await holds(alice) == 1
        async with running_reaper(server.url, name="bob", heartbeat_interval=1) as bob:

            async def both_are_seen() -> bool:
                shown = (await reaper("status", "-o", "json")).data["replicas"]
                return len(shown) == 2 and sum(one["held"] for one in shown) == 1

            await wait_until(both_are_seen, "both have registered, and one of them holds the group")
            drained, other = (alice, bob) if alice.held else (bob, alice)
            answer = await reaper("drain", drained.replica_id, "--timeout", "3600", "-o", "json")
            assert (answer.code, answer.data) == (
                0, {"replica": drained.replica_id, "drained_ms": 300_000, "holds": 0}
            )  # fmt: skip
            await holds(other)
            assert not drained.held
            rejected = await reaper("drain", other.replica_id)
            assert (rejected.code, "no other live replica with the same settings" in rejected.err) == (1, True)
            undone = await reaper("drain", drained.replica_id, "--undo")
            assert (undone.code, undone.out) == (0, f"{drained.replica_id} may take groups again.\n")
            assert await client.exists(KEYS.drained) == 0


@pytest.mark.parametrize("heir", [None, {"settings": "other"}, {"at_ms": 0}], ids=["alone", "other settings", "gone"])
async def test_a_replica_without_an_heir_is_not_drained(scene: Scene, reaper: Command, heir: object) -> None:
    now = await scene.now_ms()
    await register(scene.client, a_replica("alice", a_report(), at_ms=now, heartbeat_ms=SELDOM_MS))
    if isinstance(heir, dict):
        await register(scene.client, a_replica("bob", **{"at_ms": now, "heartbeat_ms": SELDOM_MS, **heir}))
    answer = await reaper("drain", "alice-1-abc")
    assert answer.code == 1
    assert answer.err.startswith("error: cannot drain 'alice-1-abc': no other live replica with the same settings")
    assert await scene.client.exists(KEYS.drained) == 0


async def test_a_replica_that_does_not_hand_over_in_time_is_1(scene: Scene, reaper: Command) -> None:
    await hold(scene.client, a_report(), now_ms=await scene.now_ms())
    answer = await reaper("drain", "alice-1-abc", "--timeout", "0", "--for", "30m")
    assert (answer.code, answer.err.partition(" See ")[0]) == (
        1, "alice-1-abc still holds 1 group after 0 s. It stays drained for 30 min."
    )  # fmt: skip
    assert await scene.client.zcard(KEYS.drained) == 1
    ended = await reaper("drain", "alice-1-abc", "--for", "0")
    again = await reaper("drain", "alice-1-abc", "--undo")
    assert (ended.out, again.out) == ("alice-1-abc may take groups again.\n", "alice-1-abc was not drained.\n")


async def test_a_replica_that_is_not_there_is_not_drained(scene: Scene, reaper: Command) -> None:
    now = await scene.now_ms()
    await register(scene.client, a_replica("dave", at_ms=now - 60_000), a_replica("alice", at_ms=now))
    silent, unknown = await reaper("drain", "dave-1-abc"), await reaper("drain", "carol")
    assert (silent.code, silent.err) == (
        1, "error: replica 'dave-1-abc' was not found: no live one has this ID. See `reaper replicas`.\n"
    )  # fmt: skip
    undone = await reaper("drain", "carol", "--undo")
    assert unknown == undone
    assert (unknown.code, "'carol' was not found" in unknown.err) == (1, True)
    assert await scene.client.exists(KEYS.drained) == 0
