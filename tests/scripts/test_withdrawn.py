"""Rights that are withdrawn in a script's midst: whatever a user may not run, no job is lost, and none is there twice.

A script is never rolled back. One that has written a copy and may not take its original away would leave both, and
write one more each time that it is tried again. Each command that ``reaper acl`` gives a role is withdrawn in turn.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.drill.history import read_state
from reaper.operations.acl import Role, commands_of, rules_of, scripts_of
from tests.scripts.scene import FENCE, Scene, entry_id, item
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client
from workers.protocol.keys import READY_CONSUMER, WAITING_CONSUMER, namespace_keys
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import RecoveryMode, text
from workers.protocol.scripts import load_script

pytestmark = [pytest.mark.anyio, pytest.mark.contract]

USER, PASSWORD = "withdrawn", "not-a-secret"
REAPER, EMBEDDED = RecoveryMode.REAPER, RecoveryMode.EMBEDDED
NAMESPACE = namespace_keys("reaper")
E1, E2, E3, E4, E5, E6 = map(entry_id, range(1, 7))
TRIES = 3

Run = Callable[[Scene], Awaitable[object]]
"""What a user does; the scene's client is that user's."""


async def _stalled_of_all_kinds(scene: Scene) -> None:
    """Deliveries that are to be copied, parked, given up, and made ready from where they were laid aside."""
    await scene.stalled("n", 1)
    await scene.stalled("n", 2, times=2)
    await scene.stalled("n", 3, times=3)
    await scene.stalled("n", 4, consumer=READY_CONSUMER)
    await scene.stalled("n", 5, "reaper.suspect", 1)
    for out in (E4, E5):
        await scene.client.hset(scene.keys.suspects, out, "stream,1")
    await scene.client.hset(scene.keys.notes, E4, "0,0,,,w1")


async def recovering(scene: Scene) -> Run:
    """The leader recovers."""
    await _stalled_of_all_kinds(scene)
    return lambda user: user.recover(E1, E2, E3, E4, E5)


async def claiming(scene: Scene) -> Run:
    """An embedded worker recovers."""
    await scene.client.delete(scene.keys.fence)
    await scene.agree(recovery="embedded", policy="stream", max_deliveries=3)
    await _stalled_of_all_kinds(scene)
    return lambda user: user.autoclaim(room=0, patience_ms=0)


async def adopting(scene: Scene) -> Run:
    """A worker takes over what its earlier process held."""
    await scene.agree(recovery="reaper", policy="stream", max_deliveries=3, served_until=2**52)
    await _stalled_of_all_kinds(scene)
    return lambda user: user.adopt()


async def settling(scene: Scene) -> Run:
    """A worker settles by every verdict at once, and does not hear of an earlier call that came half the way."""
    await scene.agree(recovery="reaper", policy="stream", max_deliveries=3, served_until=2**52)
    for number in range(1, 5):
        await scene.stalled("n", number, times=3 if number == 3 else 1)
    await scene.client.hset(scene.keys.notes, entry_id(1), "0,0,,,w1")
    verdicts = [item(E1, "nack"), item(E2, "reject"), item(E3, "nack", times=3), item(E4, "nack", delay_ms=60_000)]
    return lambda user: user.settle(*verdicts, delete_acked=True, reply_was_lost=True, proven_ms=1)


async def moving(scene: Scene) -> Run:
    """What was scheduled is due: a retry, an enqueue, and one that waits where it is."""
    await scene.stalled("n", 1)
    assert await scene.settle(item(E1, "nack", delay_ms=60_000), journal=False) == [1]
    await scene.enqueue(("later", 60_000, "n", 2))
    await scene.stalled("n", 3, consumer=WAITING_CONSUMER)
    await scene.client.zadd(scene.keys.schedule, {f"stream {entry_id(2)}": 1})
    for schedule in (scene.keys.schedule, scene.keys.stream_schedule):
        await scene.make_due(schedule)
    return lambda user: user.move_due()


async def releasing(scene: Scene) -> Run:
    """Suspects are let out."""
    for _ in range(2):
        await scene.stalled(times=2)
    await scene.recover(E1, E2, journal=False)
    return lambda user: user.release()


async def redriving(scene: Scene) -> Run:
    """An operator gives dead letters back."""
    for _ in range(2):
        await scene.stalled(times=3)
    await scene.recover(E1, E2, journal=False)
    rows: Any = await scene.client.xrange(scene.keys.dead)
    ids, keys = [one for one, _ in rows], scene.keys
    return lambda user: load_script("reaper", "redrive_dead_letters").run(
        user.client,
        [keys.dead, keys.stream, keys.retry, keys.agreement, keys.journal],
        [keys.group, "stream", "", 0, 1, 1_000, 10**9, *ids],
    )


async def requeueing(scene: Scene) -> Run:
    """An operator gives lost deliveries back."""
    ids, keys = [await scene.stalled() for _ in range(2)], scene.keys
    await scene.client.xack("orders", "billing", *ids)
    return lambda user: load_script("reaper", "requeue").run(
        user.client,
        [keys.stream, keys.stream, keys.retry, keys.agreement, keys.journal],
        [keys.group, "stream", 0, 1, 1_000, 10**9, *ids],
    )


async def forgetting(scene: Scene) -> Run:
    """An operator makes the group a plain one."""
    await scene.stalled()
    assert await scene.settle(item(E1, "nack", delay_ms=60_000), journal=False) == [1]
    keys = scene.keys
    return lambda user: load_script("reaper", "forget_group").run(
        user.client,
        [keys.stream, keys.retry, keys.schedule, keys.suspects, keys.dead, keys.fence, keys.agreement, keys.journal,
         keys.notes],
        [keys.group, FENCE, "0", 10**9, "stream", 1, 1_000],
    )  # fmt: skip


async def enqueueing(_scene: Scene) -> Run:
    """A producer enqueues, and calls again where it was refused."""
    return lambda user: user.enqueue(("now", 0, "n", 1), ("later", 60_000, "n", 2))


PLAYS: list[tuple[str, Role, RecoveryMode, Callable[[Scene], Awaitable[Run]]]] = [
    ("recover_entries", Role.REAPER, REAPER, recovering),
    ("autoclaim", Role.WORKER, EMBEDDED, claiming),
    ("adopt", Role.WORKER, REAPER, adopting),
    ("settle", Role.WORKER, REAPER, settling),
    ("move_due", Role.REAPER, REAPER, moving),
    ("release_suspects", Role.REAPER, REAPER, releasing),
    ("redrive_dead_letters", Role.OPERATOR, REAPER, redriving),
    ("requeue", Role.OPERATOR, REAPER, requeueing),
    ("forget_group", Role.OPERATOR, REAPER, forgetting),
    ("enqueue", Role.PRODUCER, REAPER, enqueueing),
]
ALL_SCRIPTS = {script for mode in RecoveryMode for role in Role for script in scripts_of(role, mode)}
NO_COPIES = {
    "delete_consumer": "acknowledges nothing",
    "extend_visibility": "claims, and copies nothing",
    "hold_again": "claims, and copies nothing",
    "join_group": "writes the agreement",
    "keep_house": "removes what nobody needs",
    "report_lost": "writes the journal",
    "return_taken": "gives back where it is",
    "take_over_group": "writes fence and agreement",
    "register_replica": "no jobs", "acquire_lease": "no jobs", "renew_lease": "no jobs", "release_lease": "no jobs",
    "raise_token": "no jobs", "step_down": "no jobs", "pause_group": "no jobs",
    "beat": "notes the beat",
    "count_after": "reads", "find_scheduled": "reads", "inspect_layout": "reads", "look_at_group": "reads",
}  # fmt: skip


def test_no_script_that_copies_escapes() -> None:
    assert {name for _, name in ALL_SCRIPTS} == {name for name, *_ in PLAYS} | NO_COPIES.keys()


@pytest.fixture
async def user(server: RedisServer, client: Redis) -> AsyncIterator[Redis]:
    """A user whose rights come and go."""
    await client.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", "+ping", "+info")
    connected = commands_client(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}/0")
    yield connected
    await connected.aclose()
    await client.execute_command("ACL", "DELUSER", USER)


async def _places(scene: Scene) -> Counter[str]:
    """Return in how many places each job is, where somebody runs it or may give it back."""
    state = await read_state(scene.client, scene.keys)
    pending = state.pending
    return Counter([*state.ready, *pending, *state.scheduled, *(one.job for one in state.dead)])


async def _error_of(call: Awaitable[object]) -> RedisError | None:
    try:
        await call
    except RedisError as error:
        return error
    return None


async def _log(client: Redis) -> set[str]:
    entries: Any = await client.execute_command("ACL", "LOG", "100")
    rows = [dict(zip(one[::2], one[1::2], strict=True)) if isinstance(one, list) else one for one in entries]
    return {
        text(row[b"object"] if b"object" in row else row["object"]).partition("|")[0] for row in rows
    }  # 6.2 names no more


@pytest.mark.parametrize(("name", "role", "mode", "play"), PLAYS, ids=[name for name, *_ in PLAYS])
async def test_what_may_not_be_run_leaves_no_job_twice_and_loses_none(
    client: Redis, user: Redis, name: str, role: Role, mode: RecoveryMode, play: Callable[[Scene], Awaitable[Run]]
) -> None:
    package = next(package for package, known in ALL_SCRIPTS if known == name)
    rules = rules_of(role, mode, [Scene(client).keys], [NAMESPACE]).words()
    wrong: dict[str, object] = {}
    for command in sorted(commands_of(package, name) & {word.removeprefix("+") for word in rules}):
        await client.flushdb()
        scene = Scene(client)
        await scene.prepare()
        run = await play(scene)
        before = await _places(scene)
        as_user = replace(scene, client=user)
        await client.execute_command("ACL", "SETUSER", USER, *(word for word in rules if word != f"+{command}"))
        await client.execute_command("ACL", "LOG", "RESET")
        errors = [error for _ in range(TRIES) if (error := await _error_of(run(as_user)))]
        assert not errors or command.partition("|")[0] in await _log(client), (
            f"the log names what people are told to look for: {errors}"
        )
        denied = await _places(scene)
        await client.execute_command("ACL", "SETUSER", USER, *rules)
        await run(as_user)
        after = await _places(scene)
        if any(number > 1 for number in (denied | after).values()) or before - denied or before - after or not after:
            wrong[command] = (before, denied, after)
    assert wrong == {}


async def test_in_place_a_leader_that_may_not_claim_is_refused_as_a_whole(client: Redis, user: Redis) -> None:
    """Workers prove their life by the same right: who hears of it for each entry alone would not wait for them."""
    rules = rules_of(Role.REAPER, REAPER, [Scene(client).keys], [NAMESPACE]).words()
    scene = Scene(client)
    await scene.prepare()
    await scene.stalled("n", 1)
    as_user = replace(scene, client=user)
    await client.execute_command("ACL", "SETUSER", USER, *(word for word in rules if word != "+xclaim"))
    error = await _error_of(as_user.recover(E1, policy="in-place"))
    assert error is not None
    assert meaning_of(error) is Meaning.DENIED
    await client.execute_command("ACL", "SETUSER", USER, *rules)
    assert await _error_of(as_user.recover(E1, policy="in-place")) is None


async def test_in_place_a_worker_that_may_not_claim_writes_no_delayed_retry(client: Redis, user: Redis) -> None:
    """Else the job would be in the schedule, and pending for its worker still (seed 58 of the simulation)."""
    rules = rules_of(Role.WORKER, REAPER, [Scene(client).keys], [NAMESPACE]).words()
    scene = Scene(client)
    await scene.prepare()
    await scene.agree(recovery="reaper", policy="in-place", max_deliveries=3, served_until=2**52)
    await scene.stalled("n", 1)
    as_user = replace(scene, client=user)
    await client.execute_command("ACL", "SETUSER", USER, *(word for word in rules if word != "+xclaim"))
    error = await _error_of(as_user.settle(item(E1, "nack", delay_ms=60_000)))
    assert error is not None
    assert meaning_of(error) is Meaning.DENIED
    assert await client.exists(scene.keys.schedule, scene.keys.notes) == 0
    await client.execute_command("ACL", "SETUSER", USER, *rules)
    assert await as_user.settle(item(E1, "nack", delay_ms=60_000)) == [1]
    assert await client.zcard(scene.keys.schedule) == 1
