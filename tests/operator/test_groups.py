"""Pause, resume and forget: the operator's word in the group settings, and leaving without losing a job."""

from typing import Any

import anyio
import pytest

from tests.conftest import StartProxy
from tests.operator.conftest import Answer, Command, run_command
from tests.operator.dead import give_up
from tests.operator.heartbeats import a_replica, a_report, register
from tests.scripts.scene import Scene, entry_id, ready
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from workers.protocol.keys import group_keys
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

BILLING = ("orders/billing",)


def test_a_group_is_one_word_of_a_shell_whatever_it_is_called() -> None:
    assert [group_keys(stream, "b").word for stream in ("orders", "my orders", "$(x)")] == [
        "orders/b", "'my orders/b'", "'$(x)/b'",
    ]  # fmt: skip


# --- pause and resume


async def test_a_paused_group_is_not_recovered_until_it_is_resumed(scene: Scene, reaper: Command) -> None:
    stalled = await scene.stalled()
    await reaper("groups", "pause", *BILLING)
    assert await scene.recover(stalled) == [b"paused"]
    await reaper("groups", "resume", *BILLING)
    assert len((await scene.recover(stalled))[4]) == 1


async def test_pause_and_resume_say_what_they_changed(scene: Scene, reaper: Command) -> None:
    await scene.set_settings(policy="stream")
    answers = [(await reaper("groups", verb, *BILLING)).out for verb in ("pause", "pause", "resume", "resume")]
    assert answers == [
        "orders/billing: recovery paused\n",
        "orders/billing: recovery was already paused\n",
        "orders/billing: recovery resumed\n",
        "orders/billing: recovery was already resumed\n",
    ]
    assert await scene.client.hgetall(scene.keys.settings) == {b"policy": b"stream"}


async def test_a_group_can_be_paused_when_memory_is_full(scene: Scene, reaper: Command) -> None:
    await scene.fill_memory()
    await reaper("groups", "pause", *BILLING)
    assert await scene.client.hget(scene.keys.settings, "paused") == b"1"


# --- forget


async def _forget(scene: Scene, reaper: Command, *flags: str) -> Answer:
    """Run the command, once no replica holds the group any more."""
    await scene.client.delete(scene.keys.lease)
    return await reaper("groups", "forget", *BILLING, "--yes", *flags)


async def _used(scene: Scene) -> None:
    """Leave every kind of key behind, and two quarantined jobs quarantined."""
    await scene.set_settings(policy="stream", max_deliveries=3, recovery="reaper")
    quarantined = [await scene.stalled("n", number, times=2) for number in range(2)]
    await scene.recover(*quarantined)
    await scene.client.hset(scene.keys.quarantine, "1-1", "stream")


async def test_forget_makes_quarantined_jobs_ready_and_removes_what_we_keep(scene: Scene, reaper: Command) -> None:
    await _used(scene)
    answer = await _forget(scene, reaper)
    assert (answer.code, answer.out) == (0, "orders/billing: the keys are removed, 2 scheduled jobs are ready now\n")
    await scene.client.delete(scene.keys.journal)
    entries = [
        ("new-1", *ready(entry_id(1), 2, "w1", "n", "0")),
        ("new-2", *ready(entry_id(2), 2, "w1", "n", "1")),
    ]
    assert await scene.state() == {"orders": {"entries": entries, "billing": []}}


async def test_forget_of_many_quarantined_jobs_loses_none(scene: Scene, reaper: Command) -> None:
    await scene.set_settings(policy="stream")
    quarantined = [await scene.stalled("n", number, times=2) for number in range(250)]
    await scene.recover(*quarantined)
    answer = await _forget(scene, reaper)
    assert answer.out == "orders/billing: the keys are removed, 250 scheduled jobs are ready now\n"
    entries: Any = await scene.client.xrange("orders")
    assert [flat[:2] for _, flat in entries] == [[b"n", b"%d" % number] for number in range(250)]


async def test_forget_asks_first(scene: Scene, reaper: Command) -> None:
    await _used(scene)
    before = await scene.state()
    answer = await reaper("groups", "forget", *BILLING, typed="n\n")
    assert (answer.code, answer.err) == (
        1,
        (
            "Remove the keys of orders/billing? [y/N]: n\n"
            "error: nothing was changed: not confirmed. Answer y, or use --yes.\n"
        ),
    )
    assert await scene.state() == before


async def test_forget_fails_while_a_live_replica_watches_the_group(scene: Scene, reaper: Command) -> None:
    await _used(scene)
    await scene.client.delete(scene.keys.lease)
    await register(scene.client, a_replica("alice", at_ms=await scene.now_ms()))
    before = await scene.state()
    answer = await _forget(scene, reaper)
    assert answer.code == 1
    assert "cannot forget orders/billing: replica alice-1-abc of namespace 'reaper' still watches it." in answer.err
    assert await scene.state() == before
    await register(scene.client, a_replica("alice", a_report(), at_ms=await scene.now_ms() - 60_000))
    assert "the keys are removed" in (await _forget(scene, reaper)).out, "a replica that died keeps no group"


async def test_forget_fails_while_a_replica_of_any_namespace_holds_the_group(scene: Scene, reaper: Command) -> None:
    await _used(scene)
    before = await scene.state()
    answer = await reaper("groups", "forget", *BILLING, "--yes")
    assert answer.code == 1
    assert "cannot forget orders/billing: its lease is held by alice-1-abc. Stop this replica" in answer.err
    assert await scene.state() == before


async def test_forget_keeps_dead_letters_and_the_journal(scene: Scene, reaper: Command) -> None:
    await give_up(scene)
    assert (await _forget(scene, reaper)).code == 0
    assert sorted(await scene.client.keys("{orders}:*")) == [b"{orders}:dead:billing", b"{orders}:journal"]


async def test_forget_waits_until_the_retry_stream_is_settled(scene: Scene, reaper: Command) -> None:
    await scene.client.execute_command("XADD", scene.keys.retry, "*", "n", 1)
    await scene.client.xgroup_create(scene.keys.retry, "billing", "0")
    unread = await _forget(scene, reaper)
    reply: Any = await scene.client.execute_command(
        "XREADGROUP", "GROUP", "billing", "w1", "STREAMS", scene.keys.retry, ">"
    )
    pending = await _forget(scene, reaper)
    for answer in (unread, pending):
        assert answer.code == 1
        assert "{orders}:retry:billing has unsettled jobs (1)" in answer.err
    await scene.client.xack(scene.keys.retry, "billing", reply[0][1][0][0])  # as a bare worker does: the entry stays
    settled = await _forget(scene, reaper)
    assert (settled.code, await scene.client.exists(scene.keys.retry)) == (0, 0)


async def test_a_retry_stream_without_its_group_counts_as_unread(scene: Scene, reaper: Command) -> None:
    await scene.client.execute_command("XADD", scene.keys.retry, "*", "n", 1)
    assert "unsettled jobs" in (await _forget(scene, reaper)).err


async def test_quarantined_jobs_of_a_retry_stream_group_are_ready_before_it_is_forgotten(
    scene: Scene, reaper: Command
) -> None:
    quarantined = await scene.stalled(times=2)
    await scene.set_settings(policy="retry-stream")
    await scene.recover(quarantined, policy="retry-stream")
    answer = await _forget(scene, reaper)
    assert answer.code == 1
    assert "and then forget it again (1 waiting job was made ready)." in answer.err
    assert await scene.client.xlen(scene.keys.retry) == 1
    assert await scene.client.exists(scene.keys.settings) == 1


async def test_quarantined_jobs_stay_where_nobody_would_read_them(scene: Scene, reaper: Command) -> None:
    await _used(scene)
    await scene.client.xgroup_destroy("orders", "billing")
    await scene.client.delete(scene.keys.lease)
    before = await scene.state()
    answer = await _forget(scene, reaper)
    assert answer.code == 1
    assert "Create it (XGROUP CREATE orders billing 0)" in answer.err
    assert await scene.state() == before


async def test_a_schedule_with_garbage_is_not_thrown_away(scene: Scene, reaper: Command) -> None:
    await scene.client.zadd(scene.keys.schedule, {b"\xc1garbage": 1})
    answer = await _forget(scene, reaper)
    assert answer.code == 1
    assert "cannot be made ready (the schedule holds a member that is no job)" in answer.err
    assert await scene.client.zcard(scene.keys.schedule) == 1


async def test_a_lost_reply_does_not_stop_a_forget(scene: Scene, server: RedisServer, proxy: StartProxy) -> None:
    await _used(scene)
    await scene.client.delete(scene.keys.lease)
    through = await proxy(server)
    dropped = through.drop_reply(runs(load_script("reaper", "forget_group")), nth=2)  # 1 = NOSCRIPT
    answer = await run_command(through.url, "groups", "forget", *BILLING, "--yes")
    assert (dropped.happened, answer.code) == (True, 0)
    assert (await scene.state()).keys() == {"orders", "{orders}:journal"}
    assert await scene.client.xlen("orders") == 2


async def test_forget_stops_where_a_replica_has_just_taken_the_group(
    scene: Scene, server: RedisServer, proxy: StartProxy
) -> None:
    await _used(scene)
    await scene.client.delete(scene.keys.lease)
    through = await proxy(server)
    held = through.hold_request(runs(load_script("reaper", "forget_group")))
    async with anyio.create_task_group() as tasks:
        answers: list[Answer] = []

        async def forget() -> None:
            answers.append(await run_command(through.url, "groups", "forget", *BILLING, "--yes"))

        tasks.start_soon(forget)
        await held.wait()
        await scene.client.set(scene.keys.lease, "bob-1-abc.0b@10000")
        before = await scene.state()
        held.release()
    assert answers[0].code == 1
    assert "its lease is held by bob-1-abc" in answers[0].err
    assert await scene.state() == before


async def test_forgetting_twice_changes_nothing(scene: Scene, reaper: Command) -> None:
    await _forget(scene, reaper)
    before = await scene.state()
    assert (await _forget(scene, reaper)).out == "orders/billing: the keys are removed\n"
    assert await scene.state() == before
