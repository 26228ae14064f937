"""The checker accepts a good history and finds each single thing that can be wrong with it."""

from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events, read_state
from reaper.drill.promises import DeadJob, Execution, FinalState, History, check, check_now
from tests.support.notes import note, read_notes
from workers.protocol.events import LifecycleEvent
from workers.protocol.keys import group_keys
from workers.protocol.messages import text

PAYLOAD = ((b"n", b"1"), (b"n", b"2"))


def event(name: str, job: str, **data: Any) -> LifecycleEvent:
    return LifecycleEvent("1-0", 1, name, job, {"group": "billing", **data})


def by_reaper(name: str, job: str, *, token: int = 1, idle_ms: int = 1000, **data: Any) -> LifecycleEvent:
    return event(name, job, mode="reaper", token=token, idle_ms=idle_ms, visibility_ms=1000, **data)


def lease(name: str, token: int, holder: str = "") -> LifecycleEvent:
    return event(name, "", token=token, holder=holder or f"r{token}.ab@1000")


def twice(job: str) -> list[Execution]:
    return [Execution(job)] * 2


# "done" went well, "slow" was recovered once, "bad" is poison and was given up after three deliveries.
GOOD = History(
    enqueued=dict.fromkeys(("done", "slow", "bad"), PAYLOAD),
    events=[
        event("acked", "done", entry="1-1", delivery=1, generation=0),
        by_reaper("recovered", "slow", idle_ms=1100),
        event("acked", "slow", entry="2-1", delivery=1, generation=0),
        by_reaper("recovered", "bad"),
        lease("lease_taken", 2),
        by_reaper("quarantined", "bad", token=2),
        by_reaper("recovered", "bad", token=2, idle_ms=-1),
        by_reaper("dead_lettered", "bad", token=2),
    ],
    starts=[Execution("done"), *twice("slow"), *twice("bad"), Execution("bad")],
    completions=[Execution("done"), Execution("slow")],
    state=FinalState(dead=(DeadJob("bad", 0, 3, "max_deliveries", PAYLOAD),)),
    visibility_ms=1000,
    poison=frozenset({"bad"}),
    finished=True,
    endings=[*twice("bad"), Execution("bad")],
)


def with_events(*events: LifecycleEvent) -> History:
    return replace(GOOD, events=[*GOOD.events, *events])


def with_state(**changes: Any) -> History:
    return replace(GOOD, state=replace(GOOD.state, **changes), finished=False)


def with_dead(*letters: DeadJob) -> History:
    return with_state(dead=letters)


LETTER = GOOD.state.dead[0]
LOST = replace(GOOD, enqueued={**GOOD.enqueued, "gone": PAYLOAD})

VIOLATIONS = {
    "a job is nowhere": (LOST, "I1: job gone was enqueued and is nowhere"),
    "a job was acknowledged without being done": (
        replace(GOOD, completions=[Execution("done")]),
        "I1: job slow was acknowledged and its work was never completed",
    ),
    "a job was recovered early": (
        with_events(by_reaper("recovered", "done", token=2, idle_ms=999)),
        "I2: job done was recovered after 999 ms, 1 ms too early",
    ),
    "an earlier term acted in a later one": (
        with_events(by_reaper("quarantined", "done", token=1)),
        "I3: job done was quarantined by term 1 in term 2",
    ),
    "a later term acted before it began": (
        with_events(by_reaper("quarantined", "done", token=3), lease("lease_taken", 3)),
        "I3: job done was quarantined by term 3 in term 2",
    ),
    "a term acted after its end": (
        with_events(lease("lease_left", 2), by_reaper("quarantined", "done", token=2)),
        "I3: job done was quarantined by term 2 after the end of a term",
    ),
    "a term acted after its end, which began before there was a journal": (
        replace(
            GOOD, events=[*GOOD.events[:4], lease("lease_left", 1), by_reaper("quarantined", "bad"), *GOOD.events[4:]]
        ),
        "I3: job bad was quarantined by term 1 after the end of a term",
    ),
    "the lease was left by another replica": (
        with_events(lease("lease_left", 2, "r9.ab@1000")),
        "I3: r9.ab@1000 left the lease, and r2.ab@1000 held it",
    ),
    "the lease was left twice": (
        with_events(lease("lease_left", 2), lease("lease_left", 2)),
        "I3: r2.ab@1000 left the lease, and nobody held it",
    ),
    "a job was acknowledged twice": (
        with_events(event("acked", "done", entry="3-1", delivery=1, generation=0)),
        "I4: generation 0 of job done was ended 2 times",
    ),
    "a job was acknowledged and dead-lettered": (
        replace(
            with_events(event("acked", "bad", entry="3-1", delivery=1, generation=0)),
            completions=[*(GOOD.completions or ()), Execution("bad")],
        ),
        "I4: generation 0 of job bad was ended 2 times",
    ),
    "a delivery was settled twice": (
        with_events(event("nacked", "done", entry="1-1", delivery=1, generation=0)),
        "I4: delivery 1 of entry 1-1 (job done) was settled 2 times",
    ),
    "a job was started too often": (
        replace(GOOD, starts=[*GOOD.starts, Execution("bad")]),
        "I5: generation 0 of job bad was started 4 times, 3 are allowed",
    ),
    "a job has two dead letters": (
        with_dead(LETTER, LETTER),
        "I5: generation 0 of job bad has 2 dead letters",
    ),
    "a dead letter lost a field": (
        with_dead(replace(LETTER, payload=PAYLOAD[:1])),
        "I5: the dead letter of job bad holds ((b'n', b'1'),) instead of its payload",
    ),
    "a dead letter is of a stranger": (
        with_dead(LETTER, replace(LETTER, job="who")),
        "I5: there is a dead letter of job who, which no producer enqueued",
    ),
    "a job was given up too soon": (
        with_dead(replace(LETTER, deliveries=2)),
        "I5: job bad was given up after 2 of 3 deliveries",
    ),
    "a bystander was dragged along": (
        with_dead(LETTER, replace(LETTER, job="slow")),
        "I5: job slow is not a poison job, but became a dead letter",
    ),
    "a job was given up that never failed": (
        replace(GOOD, endings=[]),
        "I5: job bad was given up, and no execution of it failed, hung or ended its process",
    ),
    "a job was recovered that had just been delivered": (
        with_events(by_reaper("recovered", "done", token=2, idle_ms=0)),
        "I2: job done was recovered after 0 ms, 1000 ms too early",
    ),
    "a job was recovered before the timeout in force had passed": (
        with_events(event("recovered", "done", mode="reaper", token=2, idle_ms=1200, visibility_ms=1300)),
        "I2: job done was recovered after 1200 ms, 100 ms too early",
    ),
    "a job was started too often though it failed each time": (
        replace(
            with_events(event("nacked", "bad", entry="9-1", delivery=1, generation=0)),
            starts=[*GOOD.starts, Execution("bad")],
        ),
        "I5: generation 0 of job bad was started 4 times, 3 are allowed",
    ),
    "a job was given up whose one failure did not count": (
        replace(with_events(event("nacked", "bad", entry="9-1", delivery=1, generation=0, verb="retry")), endings=[]),
        "I5: job bad was given up, and no execution of it failed, hung or ended its process",
    ),
    "a job is ready when all should be over": (
        replace(with_state(ready=("done",)), finished=True),
        "I7: the work is over and 1 ready jobs are left",
    ),
    "a quarantined job is out when all should be over": (
        replace(with_state(released=1), finished=True),
        "I7: the work is over and 1 released jobs are left",
    ),
    "a retry stream keeps entries": (
        replace(with_state(retry_entries=2), finished=True),
        "I7: the work is over and 2 entries in the retry stream are left",
    ),
}


def test_a_good_history_has_no_violations() -> None:
    assert check(GOOD) == []


@pytest.mark.parametrize(("history", "sentence"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_a_violation_is_found_and_named_and_no_other_promise_is(history: History, sentence: str) -> None:
    found = check(history)
    assert sentence in "\n".join(found)
    assert len({violation[:2] for violation in found}) == 1


def test_at_an_instant_no_job_is_in_two_places() -> None:
    assert check_now(GOOD) == []
    twice = replace(GOOD, finished=False, state=replace(GOOD.state, ready=("slow",), scheduled=("slow",)))
    assert check_now(twice) == ["I1: job slow is in more than one place: ready and scheduled"]
    assert check_now(replace(twice, ends_kept=False)) == []  # a job runs again if its group is destroyed


@pytest.mark.parametrize(
    "state",
    [
        replace(GOOD.state, ready=("gone",)),
        replace(GOOD.state, scheduled=("gone",)),
        replace(GOOD.state, pending=("gone",)),
    ],
    ids=["ready", "scheduled", "pending"],
)
def test_a_job_that_waits_somewhere_is_not_lost(state: FinalState) -> None:
    assert check(replace(LOST, finished=False, state=state)) == []


def test_a_payload_deleted_by_somebody_else_is_reported_and_no_loss_of_ours() -> None:
    assert check(replace(LOST, events=[*GOOD.events, event("lost_payload", "gone")])) == []


def test_a_job_acknowledged_by_a_foreign_worker_counts_as_settled_once_its_work_is_done() -> None:
    assert check(replace(LOST, completions=[*(GOOD.completions or ()), Execution("gone")])) == []


@pytest.mark.parametrize(
    "given_back",
    [
        event("handed_back", "bad", entry="9-1", delivery=1, generation=0),
        event("nacked", "bad", entry="9-1", delivery=1, generation=0, verb="retry"),
        by_reaper("quarantined", "bad", token=2, generation=0, reason="not_released"),
    ],
    ids=lambda given_back: str(given_back.event),
)
def test_a_delivery_that_does_not_count_allows_one_more_start(given_back: LifecycleEvent) -> None:
    history = with_events(given_back)
    assert check(replace(history, starts=[*GOOD.starts, Execution("bad")])) == []


@pytest.mark.parametrize(
    ("least", "verb", "settled_again", "is_wrong"),
    [
        (
            1,
            "retry",
            1,
            False,
        ),  # the limit was lowered to 1, so a job that is given back at the limit has one delivery left
        (3, "retry", 1, True),
        (1, "nack", 1, True),
        (3, "retry", 2, False),
        (1, "retry", 3, True),
    ],
)
def test_what_is_given_back_in_place_is_followed_by_one_of_its_number_or_of_a_limit_that_was_lowered(
    least: int, verb: str, settled_again: int, is_wrong: bool
) -> None:
    facts = {"entry": "9-1", "generation": 0, "new_entry": "9-1"}
    history = with_events(
        event("nacked", "bad", delivery=1, **facts),
        event("nacked", "bad", delivery=2, verb=verb, **facts),
        event("nacked", "bad", delivery=3, **facts),
        event("nacked", "bad", delivery=settled_again, **facts),
    )
    twice = f"I4: delivery {settled_again} of entry 9-1 (job bad) was settled 2 times"
    assert (twice in check(replace(history, least_deliveries=least))) is is_wrong


@pytest.mark.parametrize(
    ("lost_by", "settled_by", "is_wrong"),
    [
        (["w1"], ["w2", "w1"], False),  # w1 had it, the server lost that, w2 got it
        (["w1"], ["w1", "w1"], True),
        (["w1"], ["w2", "w2"], True),
        (["w1"], ["w2", "w1", "w1"], True),
        (["w1"], ["w2", "w3"], True),
        (["w1", "w2"], ["w1", "w2"], False),
        (["w1", "w2"], ["w1", "w2", "w3"], False),
        (["w1", "w2"], ["w1", "w3", "w3", "w3"], True),
    ],
)
def test_what_the_server_lost_that_it_had_handed_out_may_be_settled_by_each_who_had_it(
    lost_by: list[str], settled_by: list[str], is_wrong: bool
) -> None:
    acked = [event("acked", "fast", entry="9-1", delivery=1, generation=0, consumer=one) for one in settled_by]
    history = replace(
        with_events(*acked),
        completions=[*(GOOD.completions or ()), Execution("fast")],
        lost_deliveries=frozenset(("9-1", one) for one in lost_by),
    )
    assert (
        check(history)
        == [
            f"I4: generation 0 of job fast was ended {len(settled_by)} times",
            f"I4: delivery 1 of entry 9-1 (job fast) was settled {len(settled_by)} times",
        ]
        * is_wrong
    )


def test_a_job_that_failed_each_time_may_be_given_up() -> None:
    assert check(replace(with_events(event("nacked", "bad", entry="9-1", delivery=3, generation=0)), endings=[])) == []


@pytest.mark.parametrize(
    "told",
    [
        event("fenced", "", mode="reaper", token=1, idle_ms=0),
        event("dead_lettered", "bad", mode="reaper", idle_ms=0, generation=1),
    ],
    ids=["fenced", "given up by its worker"],
)
def test_what_no_replica_did_is_not_judged_as_if_one_had(told: LifecycleEvent) -> None:
    assert check(with_events(told)) == []


def test_tokens_start_over_when_redis_has_lost_the_hash_of_the_group() -> None:
    begins_again = [lease("lease_taken", 1), by_reaper("quarantined", "done", token=1)]
    assert check(with_events(*begins_again)) == []
    assert check(with_events(lease("lease_left", 0, "r2.ab@1000"), *begins_again)) == []  # it was lost in a term


def test_where_an_event_does_not_say_it_the_visibility_timeout_is_the_groups() -> None:
    recovered = event("recovered", "done", mode="reaper", token=2, idle_ms=1500)
    assert check(with_events(recovered)) == []
    assert check(replace(with_events(recovered), visibility_ms=1501)) != []


def test_a_redriven_job_starts_a_generation_of_its_own() -> None:
    history = with_events(event("acked", "bad", entry="9-1", delivery=1, generation=1))
    completions = [*(GOOD.completions or ()), Execution("bad", 1)]
    assert check(replace(history, starts=[*GOOD.starts, Execution("bad", 1)], completions=completions)) == []


@pytest.mark.anyio
async def test_a_history_is_read_from_redis(client: Redis) -> None:
    keys = group_keys("orders", "billing")
    ids = [text(await client.xadd("orders", {"n": number})) for number in range(4)]
    await client.xgroup_create("orders", "billing", "0")
    await client.xreadgroup("billing", "w", {"orders": ">"}, count=3)
    await client.xack("orders", "billing", ids[0])
    await client.xdel("orders", ids[1])
    dead: dict[Any, Any] = {"n": "x", "reaper.job": "d", "reaper.deliveries": 3, "reaper.dead.reason": "boom"}
    await client.xadd(keys.dead, dead)
    await client.eval("redis.call('ZADD', KEYS[1], 5, cmsgpack.pack({ job_id = 'later' }))", 1, keys.schedule)
    await client.xadd(keys.journal, {"event": "acked", "job": ids[0], "group": "billing"})
    await client.xadd(keys.journal, {"event": "acked", "job": "x", "group": "other"})
    for what in ("start", "completion"):
        await note(client, "ledger", what, ids[0])

    state = await read_state(client, keys)
    assert (state.pending, state.ready, state.scheduled) == ((ids[1], ids[2]), (ids[3],), ("later",))
    assert state.dead == (DeadJob("d", 0, 3, "boom", [(b"n", b"x")]),)
    assert [journalled.job for journalled in await read_events(client, keys)] == [ids[0]]
    assert await read_notes(client, "ledger") == ([Execution(ids[0])], [Execution(ids[0])])
