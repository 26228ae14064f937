"""``reaper leader``: who leads, the last terms, and asking the leader to step down."""

import pytest
from redis.asyncio import Redis

from reaper.operations.terms import UNTOLD, PastTerm, replica_of, tell_terms
from tests.faults.scene import create_group, leads, running_reaper
from tests.operator.conftest import Command, run_command
from tests.operator.heartbeats import elect
from tests.scripts.scene import Scene
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import wait_until
from workers.protocol.events import LifecycleEvent

pytestmark = pytest.mark.anyio


def _event(at_ms: int, name: str, token: object, holder: str = "alice-1.0a@1000", **data: str) -> LifecycleEvent:
    return LifecycleEvent(f"{at_ms}-0", at_ms, name, "", {"token": token, "holder": holder, **data})


def test_terms_tell_why_they_ended_and_the_latest_goes_on() -> None:
    events = [
        _event(50, "lease_acquired", 3),
        _event(40, "lease_acquired", 2, "bob-2.0b@1000"),
        _event(20, "lease_released", 1, reason="stepped_down"),
        _event(10, "lease_acquired", 1),
    ]
    assert tell_terms(events, "alice-1.0a@1000") == (
        PastTerm(token=3, holder="alice-1.0a@1000", began_ms=50),
        PastTerm(token=2, holder="bob-2.0b@1000", began_ms=40, end=UNTOLD),
        PastTerm(token=1, holder="alice-1.0a@1000", began_ms=10, ended_ms=20, end="stepped_down"),
    )


def test_events_of_others_are_passed_over() -> None:
    tokens: tuple[object, ...] = (0, None)
    assert tell_terms([_event(1, "fault_injected", token) for token in tokens], "") == ()


@pytest.mark.parametrize(
    ("holder", "replica"), [("host.de-7-a1.0fe9@10000", "host.de-7-a1"), ("odd", "odd"), ("a.b@x", "a.b@x")]
)
def test_a_holder_names_its_replica(holder: str, replica: str) -> None:
    assert replica_of(holder) == replica


async def test_the_leader_steps_down_and_another_replica_takes_over(
    server: RedisServer, client: Redis, reaper: Command
) -> None:
    await create_group(client)
    async with running_reaper(server.url, name="alice") as alice:
        await leads(alice)
        async with running_reaper(server.url, name="bob") as bob:

            async def seen() -> bool:
                shown = await reaper("leader", "show", "-o", "json")
                return shown.code == 0 and shown.data["followers"] == [bob.replica_id]

            await wait_until(seen, "bob has registered")
            answer = await reaper("leader", "step-down", "-o", "json", "--timeout", "3600")
            assert (answer.code, answer.data) == (
                0, {"stepped_down": alice.replica_id, "leader": bob.replica_id, "token": 2}
            )  # fmt: skip
            assert await leads(bob) == 2
            shown = (await reaper("leader", "show", "-o", "json")).data
    assert [(term["token"], term["end"]) for term in shown["terms"]] == [(2, ""), (1, "stepped_down")]


async def test_a_leader_without_a_follower_is_only_asked_when_one_insists(
    server: RedisServer, client: Redis, reaper: Command
) -> None:
    await create_group(client)
    async with running_reaper(server.url) as alice:
        await leads(alice)
        refused = await reaper("leader", "step-down")
        assert (refused.code, "no live follower" in refused.err) == (1, True)
        answer = await reaper("leader", "step-down", "--alone", "--timeout", "0", "--cooldown", "0.5")
        assert (answer.code, "No other replica leads" in answer.err) == (1, True)
        await wait_until(lambda: alice.term and alice.term.token == 2, "she leads again after the cooldown")


async def test_without_a_lease_nobody_can_step_down(reaper: Command) -> None:
    answer = await reaper("leader", "step-down", "--alone")
    assert (answer.code, answer.err.startswith("error: cannot step down: no replica holds the lease")) == (1, True)
    assert (await reaper("leader", "show")).code == 1


async def test_a_leader_is_shown_to_people(scene: Scene, reaper: Command) -> None:
    await elect(scene.client, now_ms=await scene.now_ms())
    answer = await reaper("leader", "show")
    first, second, *_ = answer.out.splitlines()
    assert answer.code == 0
    assert first.startswith("leader     alice-1-abc  term 7  lease ")
    assert second == "followers  bob-1-abc"


async def test_an_unreachable_server_is_3() -> None:
    assert (await run_command(f"redis://127.0.0.1:{free_port()}/0", "leader", "show")).code == 3
