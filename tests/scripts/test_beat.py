"""The beat records when heartbeats could be served, and decides when recovery waits. Tests set the server's clock."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from tests.scripts.scene import Scene
from tests.support.clock import ServerClock
from tests.support.fixtures import server_clock
from tests.support.rights import keys_of
from tests.support.servers import RedisServer
from workers.protocol.calls.declined import RecoveryWait, recovery_wait
from workers.protocol.connection import commands_client
from workers.protocol.scripts import put_together

pytestmark = [pytest.mark.anyio, pytest.mark.contract]

START_MS = 1_800_000_000_000
V = 30_000
"""The visibility timeout in ms. A gap counts from a third of it on."""
FORMER_MS = 35_000
REDELIVERED, NOT_DUE = 1, 4
DENIED = ("xclaim", "xpending", "xrange", "xack", "hset", "hmget")


BEAT = put_together("""
local stream, settings, group = KEYS[1], KEYS[2], ARGV[1]
--- @prelude
local in_force = read_settings()
open_for_writing(stream, group)
probe_heartbeat(stream)
note_beat(in_force)
return { at, recovery_waits_ms(in_force), in_force and in_force.gap or 0 }
""")
"""The calls of each script that records a beat."""


class Timed(Scene):
    """A scene whose server has a clock that stands until the test sets it."""

    clock: ServerClock
    at_ms: int = START_MS

    async def pass_ms(self, ms: int) -> None:
        """Set the server's clock on, or back. Valkey 9 keeps the time that it has read for a millisecond."""
        self.at_ms += ms
        self.clock.stand_at(self.at_ms * 1_000)
        while await self.now_ms() != self.at_ms:
            pass

    async def beat(self, client: Redis | None = None) -> list[int]:
        """Record a beat. Return server time, the wait of recovery in ms, and the last gap."""
        places = (self.keys.stream, self.keys.settings, self.keys.journal, self.keys.retry)
        reply: Any = await (client or self.client).execute_command("EVAL", BEAT, 4, *places, self.keys.group)
        return list(reply)

    async def field(self, name: str) -> int | None:
        """Return a number of the group settings."""
        value: Any = await self.client.hget(self.keys.settings, name)
        return None if value is None else int(value)

    async def waits(self, entry_id: str, **values: Any) -> int:
        """Return the wait of recovery in ms, or 0 if it has looked at the entry."""
        reply = await self.recover(entry_id, **{"visibility_ms": V, **values})
        return int(reply[1]) if reply[0] == b"waits" else 0

    async def wait_told(self) -> RecoveryWait | None:
        """Return `recovery_wait` of the group settings."""
        fields: Any = await self.client.hgetall(self.keys.settings)
        return recovery_wait({name.decode(): value.decode() for name, value in fields.items()}, self.at_ms)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> ServerClock:
    """The clock of the server."""
    return server_clock(tmp_path_factory.mktemp("clock"), stands=True)


@pytest.fixture(scope="module")
def started(binary: Path, clock: ServerClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server whose clock stands."""
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"), environment=clock.environment)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def standing(started: RedisServer, clock: ServerClock) -> RedisServer:
    """The same, empty at the start of a test."""
    clock.stand_at(START_MS * 1_000)
    started.reset()
    started.command("ACL", "DELUSER", "w")
    return started


@pytest.fixture
async def timed(standing: RedisServer, clock: ServerClock) -> AsyncIterator[Timed]:
    """A group with a visibility timeout, and no beat yet."""
    async with commands_client(standing.url) as client:
        scene = Timed(client)
        scene.clock = clock
        await scene.prepare()
        await scene.set_settings(policy="stream", visibility_ms=V)
        yield scene


async def test_without_a_group_there_is_no_beat(timed: Timed) -> None:
    await timed.client.xgroup_destroy("orders", "billing")
    with pytest.raises(ResponseError, match="NOGROUP"):
        await timed.beat()
    assert await timed.field("beat") is None


async def test_without_a_visibility_timeout_nothing_is_noted(timed: Timed) -> None:
    await timed.client.delete(timed.keys.settings)
    assert await timed.beat() == [START_MS, 0, 0]
    assert await timed.client.exists(timed.keys.settings) == 0
    assert await timed.wait_told() is None


async def test_the_first_beat_ends_no_known_gap_and_recovery_waits_for_one_timeout(timed: Timed) -> None:
    assert await timed.wait_told() == RecoveryWait(V, 0, gap_has_ended=False)
    assert await timed.beat() == [START_MS, V, 0]
    assert (await timed.field("unbroken"), await timed.field("beat")) == (START_MS, START_MS)
    await timed.pass_ms(4_000)
    assert await timed.beat() == [START_MS + 4_000, V - 4_000, 0]
    assert await timed.field("unbroken") == START_MS
    assert await timed.wait_told() == RecoveryWait(V - 4_000, 0)


async def steady(timed: Timed, for_ms: int = 3 * V) -> None:
    """Record heartbeats for a long time."""
    await timed.beat()
    for _ in range(0, for_ms, V // 3):
        await timed.pass_ms(V // 3)
        await timed.beat()


@pytest.mark.parametrize(
    ("by_ms", "counts"), [(V // 3, False), (V // 3 + 1, True), (-V // 3, False), (-V // 3 - 1, True)]
)
async def test_a_gap_or_a_step_counts_from_a_third_of_the_timeout_on(timed: Timed, by_ms: int, counts: bool) -> None:
    await steady(timed)
    await timed.pass_ms(by_ms)
    _, waits_ms, gap_ms = await timed.beat()
    assert (waits_ms, gap_ms) == ((V, abs(by_ms)) if counts else (0, 0))
    assert await timed.wait_told() == (RecoveryWait(V, abs(by_ms)) if counts else None)


async def test_a_small_step_back_leaves_no_beat_of_the_future(timed: Timed) -> None:
    await timed.beat()
    await timed.pass_ms(-1_000)
    assert await timed.beat() == [START_MS - 1_000, V, 0]
    assert await timed.field("unbroken") == START_MS - 1_000


async def test_several_small_steps_back_never_open_recovery_early(timed: Timed) -> None:
    await timed.beat()
    for _ in range(4):
        await timed.pass_ms(-V // 3)
        assert (await timed.beat())[1] == V


async def test_a_recovery_call_that_is_the_first_after_a_gap_waits(timed: Timed) -> None:
    stalled = await timed.stalled()
    await steady(timed)
    await timed.pass_ms(V)
    assert await timed.waits(stalled) == V
    await timed.pass_ms(V // 3)
    assert await timed.waits(stalled) == V - V // 3
    for _ in range(3):
        await timed.pass_ms(V // 3)
        assert await timed.waits(stalled) in (V // 3, 0)
    assert await timed.pending() == []


async def test_an_embedded_worker_waits_as_well(timed: Timed) -> None:
    await timed.set_settings(recovery="embedded")
    await timed.stalled()
    await steady(timed)
    await timed.pass_ms(V)
    assert await timed.walk() == [b"waits", V, V]
    for _ in range(3):
        await timed.pass_ms(V // 3)
        reply = await timed.walk()
    assert reply[0] == b"ok"
    assert [owner for _, owner, _ in await timed.pending()] == ["w2"]


async def test_while_recovery_waits_a_delivery_of_the_future_starts_over(timed: Timed) -> None:
    entry = await timed.add()
    await timed.deliver(entry, idle_ms=0)
    await steady(timed)
    await timed.pass_ms(-3_600_000)
    assert await timed.waits(entry) == V
    for _ in range(3):
        await timed.pass_ms(V // 3)
        await timed.beat()
    assert await timed.recover(entry) != [b"waits", 0]
    assert await timed.pending() == [], "one visibility timeout after the step, not two"


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000, V], ids=["set back", "set ahead", "an outage"])
@pytest.mark.parametrize("left_ms", [FORMER_MS, 0], ids=["while it counts", "when it is over"])
async def test_a_gap_leaves_of_the_former_timeout_what_was_left_before(timed: Timed, by_ms: int, left_ms: int) -> None:
    """Otherwise an old change counts again, or workers that could not read the new value are judged by it."""
    await steady(timed)
    await timed.set_settings(former_left=left_ms, former_visibility_ms=2 * V)
    await timed.pass_ms(by_ms)
    assert (await timed.beat())[1] == (2 * V if left_ms else V)
    assert await timed.field("former_left") == left_ms


async def test_each_beat_takes_off_what_has_passed_since_the_last_one(timed: Timed) -> None:
    await steady(timed)
    await timed.set_settings(former_left=V // 2, former_visibility_ms=2 * V)
    for left_ms in (V // 4, 0):
        await timed.pass_ms(V // 4)
        await timed.beat()
        assert await timed.field("former_left") == left_ms
    await timed.pass_ms(-100)
    await timed.beat()
    assert await timed.field("former_left") == 0, "a small step back gives nothing back"


async def test_recovery_waits_for_the_former_timeout_while_that_counts(timed: Timed) -> None:
    await timed.set_settings(former_left=FORMER_MS, former_visibility_ms=2 * V)
    assert (await timed.beat())[1] == 2 * V
    assert await timed.wait_told() == RecoveryWait(2 * V, 0)
    await timed.set_settings(former_left=0)
    assert (await timed.beat())[1] == V


async def test_a_heartbeat_notes_the_beat_with_and_without_deliveries(timed: Timed) -> None:
    entry = await timed.stalled()
    for ids in ([], [entry]):
        await timed.pass_ms(1_000)
        await timed.extend(*ids)
        assert await timed.field("beat") == timed.at_ms


@pytest.fixture
async def user(timed: Timed, standing: RedisServer) -> AsyncIterator[Redis]:
    """A user with all permissions except `DENIED`."""
    await timed.client.execute_command("ACL", "SETUSER", "w", "on", ">x", "~*", "&*", "+@all")
    async with commands_client(standing.url.replace("redis://", "redis://w:x@")) as client:
        yield client


@pytest.mark.parametrize("command", DENIED)
async def test_where_a_heartbeat_is_denied_no_beat_is_noted(timed: Timed, user: Redis, command: str) -> None:
    """Neither by a replica, nor by a heartbeat with or without a delivery, nor by a recovery call."""
    await timed.set_settings(recovery="embedded")
    stalled = await timed.stalled()
    await steady(timed)
    last = await timed.field("beat")
    await timed.client.execute_command("ACL", "SETUSER", "w", f"-{command}")
    as_user = Timed(user)
    await timed.pass_ms(1_000)
    for call in (
        as_user.beat,
        as_user.extend,
        lambda: as_user.extend(stalled),
        lambda: as_user.recover(stalled),
        as_user.walk,
    ):
        with pytest.raises((NoPermissionError, ResponseError), match=r"(?i)no permissions|can't run|NOPERM|ACL"):
            await call()
        assert await timed.field("beat") == last


@pytest.mark.parametrize("command", ["hget", "hlen"])
async def test_a_heartbeat_needs_no_right_that_the_beat_does_not_need(timed: Timed, user: Redis, command: str) -> None:
    """Else the beat goes on while heartbeats are denied."""
    stalled = await timed.stalled()
    await timed.client.hset("{orders}:quarantine:billing", stalled, "stream,,0")
    await timed.client.execute_command("ACL", "SETUSER", "w", f"-{command}")
    assert await Timed(user).extend(stalled) == [1]
    assert await timed.client.hget("{orders}:quarantine:billing", stalled) == b"stream,1,0"


async def test_a_server_that_takes_no_writes_has_no_beat(timed: Timed) -> None:
    await steady(timed)
    last = await timed.field("beat")
    await timed.pass_ms(1_000)
    await timed.client.config_set("min-replicas-to-write", 1)
    for call in (timed.beat, timed.extend):
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            await call()
    await timed.client.config_set("min-replicas-to-write", 0)
    assert await timed.field("beat") == last


async def test_when_memory_is_full_the_beat_goes_on(timed: Timed) -> None:
    await steady(timed)
    await timed.fill_memory()
    await timed.pass_ms(1_000)
    await timed.beat()
    assert await timed.field("beat") == timed.at_ms


@pytest.mark.parametrize("fields", [{"beat": "junk"}, {"unbroken": "junk"}, {"beat": "", "unbroken": "-1"}])
async def test_fields_that_are_no_numbers_are_no_beat(timed: Timed, fields: dict[str, str]) -> None:
    await steady(timed)
    await timed.set_settings(**fields)
    told = await timed.wait_told()
    assert told is not None
    assert (told.left_ms, (await timed.beat())[1]) == (V, V)


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (RecoveryWait(12_000, 41_000), "recovery waits 12 s: no heartbeat could be served for 41 s"),
        (RecoveryWait(1_500, 900), "recovery waits 1.5 s: no heartbeat could be served for 0.9 s"),
        (RecoveryWait(12_000, 0), "recovery waits 12 s: no heartbeat could be served in this group before"),
        (
            RecoveryWait(30_000, 41_000, gap_has_ended=False),
            "recovery waits 30 s after the next heartbeat: none was served for 41 s",
        ),
        (
            RecoveryWait(30_000, 0, gap_has_ended=False),
            "recovery waits 30 s after the next heartbeat: none was served in this group before",
        ),
    ],
)
def test_it_says_for_how_long_recovery_waits_and_why(wait: RecoveryWait, said: str) -> None:
    assert str(wait) == said


def test_whatever_notes_a_beat_names_the_keys_of_every_heartbeat() -> None:
    """While a slot of a cluster moves, Redis rejects calls that name a missing key, and serves others."""
    needed = {"orders", "{orders}:group:billing", "{orders}:journal", "{orders}:retry:billing"}
    noting = [("workers.protocol", "extend"), ("workers.protocol", "recover"), ("reaper", "tick")]
    assert [name for name in noting if not needed <= keys_of(*name)] == []
