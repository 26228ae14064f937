"""``reaper status``: what it reads from Redis, what it prints, and its exit code."""

import re
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.operations.durations import duration
from reaper.operations.judgement import judge
from reaper.operations.snapshot import MOST_COUNTED, find_mismatches, take_snapshot
from reaper.operations.state import Count, GroupState, SourceState
from reaper.reasons import ProblemKind, count_patterns, worst
from reaper.settings import ReaperSettings
from tests.conftest import StartProxy, StartServer
from tests.operator.conftest import Command, run_command
from tests.operator.dead import give_up
from tests.operator.heartbeats import KEYS, SELDOM_MS, a_replica, a_report, register, serve
from tests.scripts.scene import HOLDER, Scene
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def _group(scene: Scene) -> GroupState:
    (group,) = (await take_snapshot(scene.client, KEYS)).groups
    return group


# --- exit codes


async def test_a_healthy_service_is_0(scene: Scene, reaper: Command) -> None:
    await serve(scene, recovered=12)
    answer = await reaper("status")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "healthy")


async def _many(scene: Scene, number: int) -> list[str]:
    """Make groups that alice holds: the reports of the worst are in what she says. Return all groups."""
    now = await scene.now_ms()
    groups = [f"mail:{at:02}/sender" for at in range(number)]
    reports = [
        a_report(group=group, pattern="mail:*", last_scan_ms=now, undeliverable=at % 7)
        for at, group in enumerate(groups)
    ]
    for group in groups:
        await scene.client.xgroup_create(group.partition("/")[0], "sender", "0", mkstream=True)
        await scene.client.set(f"{{{group.partition('/')[0]}}}:lease:sender", HOLDER, px=SELDOM_MS)
    alice = a_replica(
        "alice",
        *worst(reports, now),
        at_ms=now,
        heartbeat_ms=SELDOM_MS,
        watched=number,
        held=number,
        patterns=count_patterns({"mail:*": (number, len(reports))}, reports, now),
    )
    await register(scene.client, alice, a_replica("bob", at_ms=now, heartbeat_ms=SELDOM_MS), groups="\n".join(groups))
    return groups


async def test_of_many_groups_the_worst_are_shown_a_line_each(scene: Scene, reaper: Command) -> None:
    groups = await _many(scene, 40)
    lines = (await reaper("status")).out.splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("mail:")]
    ranked = sorted(groups, key=lambda group: (-(int(group[5:7]) % 7), group))
    assert shown == sorted(ranked[:20])
    assert "  patterns  mail:* · holds 40 of 40 groups · undeliverable 34" in lines
    assert "… and 20 more groups: see --group GLOB, or --all" in lines
    assert "  - 14 more groups have the problem undeliverable. Run `reaper status --all`." in lines
    assert len(lines) < 60


async def test_groups_are_shown_by_a_pattern_or_all(scene: Scene, reaper: Command) -> None:
    groups = await _many(scene, 40)
    every, some = [(await reaper("status", "-o", "json", *flags)).data for flags in (("--all",), ("--group", "*:1?/*"))]
    assert [group["group"] for group in every["groups"]] == groups
    assert [group["group"] for group in some["groups"]] == groups[10:20]
    assert (every["left_out"], some["left_out"]) == (0, 30)
    assert some["patterns"] == [{"pattern": "mail:*", "watched": 40, "held": 40, "problems": {"undeliverable": 34}}]
    (replica, _) = some["replicas"]
    assert "groups" not in replica
    screen = (await reaper("status", "--group", "mail:07/sender")).out
    assert "mail:07/sender  healthy  holder alice-1-abc" in screen


async def test_a_degraded_service_is_1_and_says_why(scene: Scene, reaper: Command) -> None:
    await serve(scene, recovered=12)
    await reaper("groups", "pause", "orders/billing")
    answer = await reaper("status")
    assert answer.code == 1
    assert answer.out.splitlines()[-2:] == [
        "degraded",
        "  - orders/billing: recovery is paused. Run `reaper groups resume orders/billing` to resume it.",
    ]


async def test_a_server_that_goes_away_meanwhile_is_3(scene: Scene, server: RedisServer, proxy: StartProxy) -> None:
    await serve(scene, recovered=12)
    through = await proxy(server)
    through.drop_reply(lambda request: request.command == b"XLEN")
    answer = await run_command(through.url, "status")
    assert answer.code == 3
    assert answer.err.startswith(f"error: Redis at '{through.url}' failed: ")


async def test_a_user_without_the_rights_is_told_so(start_server: StartServer) -> None:
    server = start_server()
    server.command("ACL", "SETUSER", "viewer", "on", ">pw", "~*", "+@all", "-xinfo")
    url = server.url.replace("redis://", "redis://viewer:pw@")
    answer = await run_command(url, "status", "--groups", "orders/billing")
    assert answer.code == 3
    assert "no permissions" in answer.err
    assert "pw@" not in answer.err


# --- the text for people


async def test_the_screen_shows_replicas_holder_and_group(scene: Scene, reaper: Command) -> None:
    await serve(scene, recovered=12)
    await scene.deliver(await scene.add(), idle_ms=36_000_000)
    await scene.add()
    await scene.client.zadd(KEYS.drained, {"bob-1-abc": 9_999_999_999_999})
    lines = (await reaper("status")).out.splitlines()
    assert lines[2].split() == ["replicas", "2", "live"]
    assert re.fullmatch(r" +alice-1-abc · holds 1 of 1 group · started 60 s ago|.* started 1\.0 min ago", lines[3])
    assert lines[4].endswith(" · drained")
    assert lines[6:8] == [
        "orders/billing  healthy",
        "  recovery  reaper · stream · visibility timeout 30 s · max deliveries 3",
    ]
    assert "pending 1 (oldest idle 10 h) · scheduled 0 · quarantined 0, released 0 · dead letters 0" in lines[8]
    assert lines[9].startswith("  holder    alice-1-abc · token 7 · lease ")
    assert lines[10] == "  consumers 1 · recovered 12"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (59_000, "59 s"), (90_000, "1.5 min"), (10**8, "1.2 d")],
)
def test_durations_read_well(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


# --- the JSON for machines


async def test_json_holds_replicas_and_groups(scene: Scene, reaper: Command) -> None:
    await serve(scene, recovered=12)
    await give_up(scene)
    data = (await reaper("status", "-o", "json")).data
    assert (data["status"], data["problems"]) == ("healthy", [])
    assert [(replica["name"], replica["held"], replica["live"]) for replica in data["replicas"]] == [
        ("alice", 1, True),
        ("bob", 0, True),
    ]
    (group,) = data["groups"]
    assert (group["group"], group["mode"], group["policy"], group["dead_letters"]) == (
        *("orders/billing", "reaper", "stream"),
        1,
    )
    assert (group["recovered"], group["report"]["recovered"], group["served_by"]) == (12, 5, "alice-1-abc")
    assert (group["holder"], group["token"], group["lease_left_ms"] > 0) == (HOLDER, 7, True)


# --- the reads


async def test_counts_of_a_group_come_from_redis(scene: Scene) -> None:
    await serve(scene, recovered=12)
    await scene.recover(*[await scene.stalled("n", one, times=2) for one in range(3)])  # quarantined
    await give_up(scene)
    await scene.client.zadd(scene.keys.schedule, {"later": 1_900_000_000_000})
    await scene.client.zadd(scene.keys.stream_schedule, {"much later": 1_900_000_000_000})
    await scene.client.hset(scene.keys.quarantine, "1-1", "stream")
    group = await _group(scene)
    assert (group.quarantined, group.released, group.scheduled, group.dead_letters) == (3, 1, 2, 1)
    assert (group.mode, group.policy, group.visibility_ms, group.max_deliveries) == ("reaper", "stream", 30_000, 3)


async def test_ready_and_pending_are_told_with_their_ages(scene: Scene) -> None:
    await serve(scene, recovered=12)
    await scene.stalled()
    await scene.add()
    await scene.add()
    main = (await _group(scene)).main
    assert (main.exists, main.entries, main.ready, main.pending) == (True, 3, Count(2), 1)
    assert main.oldest_ready_ms is not None
    assert main.oldest_ready_ms > 10**9
    assert main.oldest_pending_ms is not None
    assert main.oldest_pending_ms >= 60_000


@pytest.mark.contract
async def test_ready_is_what_can_be_read_also_after_entries_were_deleted(scene: Scene) -> None:
    """The server's own count, `lag`, is wrong then on Redis 7.0 and on Valkey 9.1."""
    await serve(scene, recovered=12)
    added = [await scene.add() for _ in range(2)]
    await scene.client.xreadgroup("billing", "w1", {"orders": ">"}, count=1)
    assert (await _group(scene)).main.ready == Count(1)
    await scene.client.xdel("orders", *added)
    assert (await _group(scene)).main.ready == Count(0)


async def test_counting_ends_somewhere_and_says_so(scene: Scene) -> None:
    await serve(scene, recovered=12)
    pipe = scene.client.pipeline(transaction=False)
    for number in range(MOST_COUNTED + 60):
        pipe.execute_command("XADD", "orders", "*", "n", number)
    added: Any = await pipe.execute()
    await scene.client.xdel("orders", added[5])
    ready = (await _group(scene)).main.ready
    assert (ready, str(ready)) == (Count(MOST_COUNTED, at_least=True), "10000+")


async def test_large_payloads_are_counted_within_the_budget(scene: Scene) -> None:
    await serve(scene, recovered=12)
    added = [await scene.add("blob", b"x" * 200_000) for _ in range(20)]
    await scene.client.xdel("orders", added[3])
    assert (await _group(scene)).main.ready == Count(19)


async def test_a_retry_stream_without_a_group_shows_its_entries(scene: Scene) -> None:
    await serve(scene, recovered=12)
    await scene.client.execute_command("XADD", scene.keys.retry, "*", "n", 1)
    assert (await _group(scene)).retry == SourceState(exists=False, entries=1)


async def test_copies_that_wait_while_consumers_stay_away_are_a_problem(scene: Scene) -> None:
    await serve(scene, recovered=12)
    await scene.set_settings(visibility_ms=1)
    await scene.client.xgroup_create(scene.keys.retry, "billing", "0", mkstream=True)
    read = ("XREADGROUP", "GROUP", "billing", "w1", "NOACK", "STREAMS", scene.keys.retry, ">")
    await scene.client.execute_command("XADD", scene.keys.retry, "*", "n", 1)
    await scene.client.execute_command(*read)
    await scene.client.execute_command("XADD", scene.keys.retry, "*", "n", 2)

    async def unread() -> bool:
        return ProblemKind.UNREAD in [one.check for one in judge(await take_snapshot(scene.client, KEYS))]

    assert await wait_until(unread, "the copy has waited for longer than the visibility timeout")
    await scene.client.execute_command(*read)
    assert not await unread()


async def test_groups_are_those_of_the_settings_and_of_the_replicas(scene: Scene) -> None:
    await serve(scene, recovered=12)
    settings = ReaperSettings(groups="orders/audit,orders/billing")
    snapshot = await take_snapshot(scene.client, KEYS, settings.watched)
    assert [group.group for group in snapshot.groups] == ["orders/audit", "orders/billing"]
    assert [group.report is not None for group in snapshot.groups] == [False, True]


async def test_a_stream_that_is_none_is_told_from_one_that_is_missing(client: Redis, reaper: Command) -> None:
    for key in ("orders", "{mail}:retry:billing"):
        await client.set(key, "something else")
    told = (await reaper("status", "--groups", "orders/billing,mail/billing")).out
    assert "orders/billing: orders is not a stream: another program uses this name" in told
    assert "mail/billing: {mail}:retry:billing is not a stream: another program uses this name" in told
    assert "mail/billing: recovery is disabled: the stream or its group does not exist" in told


@pytest.mark.parametrize("command", ["status", "doctor", "explain"])
async def test_commands_that_look_write_nothing(scene: Scene, reaper: Command, command: str) -> None:
    await serve(scene, recovered=12)
    entry = await scene.stalled()
    before = await scene.state()
    await reaper(command, *([entry] if command == "explain" else []))
    assert await scene.state() == before


def test_workers_that_differ_are_named_while_they_are_there() -> None:
    group_settings = {
        "registration:w1.1": "1000,worker w1: max_deliveries 3 is in force, 9 is set",
        "registration:w2.1": "1000,worker w2: max_deliveries 3 is in force, 9 is set",
        "registration:w3.1": "2000,worker w3: policy stream is in force, retry-stream is set; max_deliveries 3, 4",
        "registration:w4.1": "2000,",
        "registration:w5.1": "something else",
    }
    both = "max_deliveries 3 is in force, 9 is set"
    alone = "worker w3: policy stream is in force, retry-stream is set; max_deliveries 3, 4"
    assert find_mismatches(group_settings, 999) == (f"worker w1: {both}", alone)
    assert find_mismatches(group_settings, 1_000) == (alone,)
    assert find_mismatches(group_settings, 2_000) == ()
