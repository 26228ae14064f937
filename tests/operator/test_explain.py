"""``reaper explain``: the place of a job, and its next step."""

from itertools import product
from typing import Any

import pytest

from tests.operator.conftest import Command
from tests.operator.dead import give_up
from tests.operator.heartbeats import serve
from tests.scripts.scene import Scene, entry_id
from tests.support.servers import url_of
from workers import Producer

NO_REPLICA = (
    "no live replica in namespace 'reaper'. Start `reaper run`, or set --namespace. "
    "`reaper status --observe` shows observers."
)
pytestmark = pytest.mark.anyio

ADVICE = "Check the ID, or name another group with --group."
USED_UP = "dead-lettered after 3 deliveries, or quarantined again if the last one never began"


async def _explained(reaper: Command, job: str) -> dict[str, Any]:
    answer = await reaper("explain", job, "-o", "json")
    assert answer.code == 0, answer.err
    (told,) = answer.data
    assert isinstance(told, dict)
    return told


def _shown(told: dict[str, Any], *names: str) -> list[Any]:
    return [told[name] for name in names]


async def test_a_pending_job_has_an_owner_and_a_deadline(scene: Scene, reaper: Command) -> None:
    await serve(scene, visibility_ms=3_600_000)
    entry = await scene.add("n", 1, "reaper.job", "order-1")
    await scene.deliver(entry, consumer="w7", idle_ms=600_000)
    told = await _explained(reaper, "order-1")
    assert _shown(told, "place", "source", "entry_id", "owner", "deliveries", "obstacles") == [
        "pending", "orders", entry, "w7", 1, []
    ]  # fmt: skip
    assert 2_000_000 < told["due_in_ms"] <= 3_000_000
    assert told["next"].startswith("unless it is settled or extended within ")
    assert told["next"].endswith("it is ready again, for delivery 2 of 3")


@pytest.mark.parametrize(
    ("fields", "in_force", "fate"),
    [
        (3_487, {}, "ready again, for delivery 2 of 3"),
        (3_488, {}, "reported, and stays pending, because its 3488 fields are too many to copy"),
        (3_488, {"policy": "in-place"}, "ready again, for delivery 2 of 3"),
        (3_488, {"recovery": "embedded"}, "ready again, for delivery 2 of 3"),
    ],
)
async def test_it_says_if_recovery_cannot_copy_the_entry(
    scene: Scene, reaper: Command, fields: int, in_force: dict[str, str], fate: str
) -> None:
    await serve(scene, **in_force)
    entry = await scene.stalled(*(["n"] * 2 * fields))
    told = await _explained(reaper, entry)
    assert told["next"].endswith(f"it is {fate}")
    if not in_force:
        held = (await scene.recover(entry))[3]
        assert bool(held) == ("stays" in fate)


@pytest.mark.parametrize("typed", [r"\xff\xfe", "\udcff\udcfe"], ids=["as it is shown", "its bytes"])
async def test_a_job_whose_id_is_no_text_is_found_as_it_is_shown(scene: Scene, reaper: Command, typed: str) -> None:
    entry = await scene.stalled("n", 1, "reaper.job", b"\xff\xfe")
    (told,) = (await reaper("explain", typed, "--group", "orders/billing", "-o", "json")).data
    assert _shown(told, "place", "entry_id") == ["pending", entry]


async def test_a_job_of_a_group_that_nobody_watches_is_found_where_the_group_is_named(
    scene: Scene, reaper: Command
) -> None:
    entry = await scene.stalled("n", 1)
    (told,) = (await reaper("explain", entry, "--group", "orders/billing", "-o", "json")).data
    assert _shown(told, "group", "place") == ["orders/billing", "pending"]
    assert told["obstacles"] == [NO_REPLICA]
    missed = await reaper("explain", "order-1", "--group", "orders/billing")
    assert (missed.code, missed.err) == (1, f"error: job 'order-1' was not found in orders/billing. {ADVICE}\n")


@pytest.mark.parametrize(
    ("times", "next_"),
    [
        (1, "so at the next scan it is ready again, for delivery 2 of 3"),
        (2, "so at the next scan it is quarantined: its next delivery (3 of 3) runs alone"),
        (3, f"so at the next scan it is {USED_UP}"),
    ],
)
async def test_what_becomes_of_an_overdue_delivery_depends_on_its_count(
    scene: Scene, reaper: Command, times: int, next_: str
) -> None:
    await serve(scene, policy="retry-stream")
    entry = await scene.stalled("n", 1, times=times)
    told = await _explained(reaper, entry)
    assert told["due_in_ms"] == 0
    assert told["next"].partition("ago, ")[2] == next_


@pytest.mark.parametrize("limit", [1, 3, 5])
@pytest.mark.parametrize("is_given_back", [False, True])
async def test_it_says_what_recovery_does(scene: Scene, reaper: Command, limit: int, *, is_given_back: bool) -> None:
    await serve(scene, policy="stream", max_deliveries=limit)
    for times, quarantined in product(range(1, 7), (False, True)):
        words = ["reaper.deliveries", times // 3, *(["reaper.quarantined", 1] if quarantined else [])]
        added: Any = await scene.client.execute_command("XADD", scene.keys.stream, "*", *words)
        entry = added.decode()
        await scene.deliver(entry, times=times - times // 3, idle_ms=10**11 if is_given_back else 60_000)
        said = (await _explained(reaper, entry))["next"]
        await scene.recover(entry)
        newest: Any = await scene.client.xrevrange(scene.keys.journal, count=1)
        event = newest[0][1][newest[0][1].index(b"event") + 1]
        done = {b"recovered": "ready again", b"quarantined": "quarantined", b"dead_lettered": "dead-lettered"}
        assert done[event] in said, (times, quarantined, said, event)
        assert not (limit == 1 or is_given_back) or "or" not in said.split(), said


async def test_a_longer_visibility_timeout_of_its_own_counts(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    entry = await scene.add("n", 1, "reaper.visibility_ms", 600_000)
    await scene.deliver(entry, idle_ms=60_000)
    told = await _explained(reaper, entry)
    assert told["visibility_ms"] == 600_000
    assert 100_000 < told["due_in_ms"] <= 540_000


async def test_what_keeps_recovery_from_happening_is_said(scene: Scene, reaper: Command) -> None:
    await scene.set_settings(recovery="reaper", paused="1")
    entry = await scene.stalled("n", 1)
    answer = await reaper("explain", entry, "--group", "orders/billing")
    assert answer.code == 0
    assert "obstacle   recovery is paused. Run `reaper groups resume orders/billing` to resume it." in answer.out
    assert f"obstacle   {NO_REPLICA}" in answer.out
    assert "deliveries 1 of " in answer.out


async def test_that_no_replica_holds_the_group_is_said(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    entry = await scene.stalled("n", 1)
    await scene.client.delete(scene.keys.lease)
    (said,) = (await _explained(reaper, entry))["obstacles"]
    assert said.startswith("no replica holds the lease of this group.")


async def test_a_ready_job_waits_for_a_reader(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    entry = await scene.add()
    told = await _explained(reaper, entry)
    assert _shown(told, "place", "obstacles") == ["ready", ["no consumer reads orders. Start a worker."]]
    assert told["next"] == "a worker reads it: 1 job is ready, for 0 consumers"


async def test_a_quarantined_job_is_found_in_the_schedule(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    entries = [await scene.stalled("n", n, "reaper.job", f"order-{n}", times=2) for n in (1, 2)]
    await scene.recover(*entries)
    told = await _explained(reaper, "order-2")
    assert _shown(told, "place", "source", "deliveries") == ["quarantined", "{orders}:scheduled:billing", 2]
    assert told["next"].endswith("it becomes ready in its turn")
    assert [event["event"] for event in told["events"]] == ["quarantined"]


async def test_a_dead_job_tells_why_and_how_to_redrive_it(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    letter = await give_up(scene, "n", 1, "reaper.job", "order-1")
    command = f"reaper dead-letters redrive orders/billing {letter}"
    told = await _explained(reaper, "order-1")
    assert _shown(told, "place", "entry_id", "reason", "next") == [
        "dead", letter, "max_deliveries",
        f"nothing, because it is a dead letter: `{command}` makes it ready again",
    ]  # fmt: skip


async def test_a_recovered_job_is_followed_to_its_new_entry(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    old = await scene.stalled("n", 1)
    await scene.recover(old)
    told = await _explained(reaper, old)
    assert _shown(told, "job_id", "place", "deliveries") == [old, "ready", 1]
    assert told["entry_id"] != old
    assert [event["event"] for event in told["events"]] == ["recovered"]


async def test_an_acknowledged_job_is_done_and_without_an_event_that_is_not_certain(
    scene: Scene, reaper: Command
) -> None:
    await serve(scene)
    ours, plain = [await scene.stalled("n", 1) for _ in range(2)]
    await scene.ack(ours)
    await scene.client.xack("orders", "billing", plain)
    assert _shown(await _explained(reaper, ours), "place", "next") == ["settled", "nothing: it is settled"]
    assert (await _explained(reaper, plain))["next"].endswith("a third party deleted its consumer")


async def test_a_lost_job_names_the_command_that_gives_it_back(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    entry = await scene.stalled("n", 1, "reaper.job", "order-1")
    await scene.client.xack("orders", "billing", entry)
    lost: dict[Any, Any] = {"event": "lost_delivery", "job": "order-1", "group": "billing", "entry": entry}
    await scene.client.xadd(scene.keys.journal, lost)
    assert f"`reaper groups requeue orders/billing {entry}`" in (await _explained(reaper, "order-1"))["next"]


async def test_a_job_nobody_knows_is_1(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    people, machines = await reaper("explain", entry_id(99)), await reaper("explain", entry_id(99), "-o", "json")
    assert (people.code, machines.code, machines.data["status"]) == (1, 1, "not_possible")
    assert people.err == f"error: job {entry_id(99)!r} was not found in orders/billing. {ADVICE}\n"


async def test_a_job_whose_entry_was_deleted_while_pending_is_not_called_settled(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    entry = await scene.stalled("n", 1)
    await scene.client.xdel(scene.keys.stream, entry)
    await scene.recover(entry)
    told = await _explained(reaper, entry)
    assert told["next"] == "nothing, because its entry was deleted before it was settled: enqueue the job again"


async def test_what_comes_from_outside_stays_on_its_line(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    entry = await scene.add("n", 1, "reaper.job", "a\nb")
    await scene.deliver(entry, consumer="w\x1b[31m\n")
    answer = await reaper("explain", entry)
    assert f"job {entry}" in answer.out  # a line feed is in no job ID
    assert "owner      w\\x1b[31m\\n" in answer.out


async def test_what_stalls_while_recovery_waits_says_so(scene: Scene, reaper: Command) -> None:
    await serve(scene, visibility_ms=3_600_000)
    await scene.set_settings(unbroken=await scene.now_ms(), gap=41_000)
    told = await _explained(reaper, await scene.stalled("n", 1))
    assert told["next"].startswith("unless it is settled or extended, recovery waits ")
    assert told["next"].endswith(" and then it is ready again, for delivery 2 of 3")
    assert 3_000_000 < told["due_in_ms"] <= 3_600_000
    [said] = told["obstacles"]
    assert said.startswith("recovery waits 3")
    assert said.endswith(" s: no heartbeat could be served for 41 s")


async def test_in_embedded_mode_a_worker_recovers_it_and_no_replica_is_missed(scene: Scene, reaper: Command) -> None:
    await scene.set_settings(policy="stream", visibility_ms=30_000, max_deliveries=3, recovery="embedded")
    await scene.beats()
    entry = await scene.add("n", 1, "reaper.visibility_ms", 600_000)
    await scene.deliver(entry, idle_ms=10_000)
    answer = await reaper("explain", entry, "-o", "json", "--groups", "orders/billing")
    [told] = answer.data
    assert (told["visibility_ms"], told["obstacles"]) == (600_000, [])
    assert told["next"].endswith("it is ready again, for delivery 2 of 3")


async def test_a_job_that_was_put_off_tells_when_it_is_due(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    async with Producer("orders", url_of(scene.client)) as producer:
        job = await producer.enqueue({"n": "1"}, job_id="order-1", delay=3_600)
    told = await _explained(reaper, "order-1")
    assert _shown(told, "job_id", "place", "source") == [job, "scheduled", "{orders}:scheduled"]
    assert 3_500_000 < told["due_in_ms"] <= 3_600_000


async def test_a_search_that_is_cut_short_says_so(scene: Scene, reaper: Command) -> None:
    await serve(scene)
    for number in range(5):
        await scene.add("n", number)
    answer = await reaper("explain", "order-1", "--depth", "3")
    assert answer.code == 1
    assert "was not found in the newest 3 entries of orders/billing. Check the ID, raise --depth, or" in answer.err
