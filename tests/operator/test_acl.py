"""``reaper acl`` prints exact rights. Each role does the whole of its job with them, and other calls are denied."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from reaper.operations.acl import Role, roles_in, rules_of
from reaper.operations.judgement import judge
from reaper.operations.snapshot import take_snapshot
from reaper.pipelined import PipelinedClient
from reaper.settings import observers_of
from tests.faults.scene import (
    GROUP,
    KEYS,
    NAMESPACE,
    STREAM,
    Handler,
    create_group,
    enqueue,
    holds,
    nothing_left,
    running_reaper,
    running_worker,
    strand,
)
from tests.operator.conftest import run_command
from tests.operator.heartbeats import SELDOM_MS, a_replica
from tests.scripts.scene import Scene
from tests.support.knobs import hurry
from tests.support.rights import keys_in_order, scripts_of
from tests.support.servers import RedisServer
from tests.support.tiers import by_claim
from tests.support.waiting import wait_until
from workers import Job, NewJob, Producer, Retry, Worker
from workers.protocol.connection import KeptConnection, commands_client
from workers.protocol.keys import namespace_keys
from workers.protocol.messages import RecoveryMode
from workers.protocol.scripts import Script

pytestmark = [pytest.mark.anyio, pytest.mark.contract]

PASSWORD = "not-a-secret"  # noqa: S105 - of a user that lives for one test
REAPER, EMBEDDED = RecoveryMode.REAPER, RecoveryMode.EMBEDDED
ALL_SCRIPTS = {script for mode in RecoveryMode for role in roles_in(mode) for script in scripts_of(role, mode)}
OTHERS = ("orders-eu", "{orders}:dead:audit", "{other}:replicas")


async def let_in(client: Redis, server: RedisServer, role: Role, mode: RecoveryMode = REAPER) -> str:
    """Make a user with exactly the rights of a role. Return the URL of its connection."""
    words = rules_of(role, mode, [KEYS], [NAMESPACE]).words
    await client.execute_command("ACL", "SETUSER", role.value, "reset", "on", f">{PASSWORD}", *words)
    return f"redis://{role.value}:{PASSWORD}@127.0.0.1:{server.port}/0"


@pytest.fixture(autouse=True)
async def _without_users(client: Redis) -> AsyncIterator[None]:
    yield
    for role in Role:
        await client.execute_command("ACL", "DELUSER", role.value)


@asynccontextmanager
async def as_user(client: Redis, server: RedisServer, role: Role, mode: RecoveryMode = REAPER) -> AsyncIterator[Redis]:
    """Connect as a role's user."""
    user = commands_client(await let_in(client, server, role, mode))
    try:
        yield user
    finally:
        await user.aclose()


async def denials(client: Redis) -> list[str]:
    """Return the denied calls so far, without redis-py's CLIENT SETINFO (servers below 7.2 do not know it)."""
    log: Any = await client.execute_command("ACL", "LOG", "100")
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) if isinstance(entry, list) else entry for entry in log]
    objects = [entry.get(b"object", entry.get("object")) for entry in entries]
    texts = [thing.decode() if isinstance(thing, bytes) else str(thing) for thing in objects]
    return [thing for thing in texts if not thing.startswith(("client|setinfo", "client"))]


# --- for long -----------------------------------------------------------------------------------------------

EARLIER = "w~" + "0" * 12
"""A process of the worker's name that has died."""


SENT_OTHERWISE = {"hold", "return_taken"}
"""Written by the journal's own connection, which waits for no answers: `denials` sees them; and what one needs who has
lost his consumer by others' hands (`tests/workers/test_vanished.py`)."""


class Ran:
    """The scripts that each user has run. Every call must name the keys in the script's header."""

    def __init__(self) -> None:
        self.scripts: set[tuple[str, str]] = set()
        self.wrong: list[str] = []

    def note(self, script: Script, client: Any, keys: Sequence[str | bytes]) -> None:
        """Note a call."""
        pool = client._pool if isinstance(client, KeptConnection) else client.connection_pool
        self.scripts.add((str(pool.connection_kwargs.get("username")), script.name))
        places = next(keys_in_order(*known) for known in ALL_SCRIPTS if known[1] == script.name)
        for n, key in enumerate(map(text_of, keys)):
            described = places[min(n, len(places) - 1)]
            if not any(fnmatchcase(key, one) for one in described):
                self.wrong.append(f"{script.name}: key {n + 1} is {key}, described is {sorted(described)}")

    def by(self, role: Role) -> set[str]:
        """Return what a role's user has run."""
        return {script for user, script in self.scripts if user == role.value}


def text_of(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    notes, run, run_blocking, ask_script = Ran(), Script.run, Script.run_blocking, PipelinedClient.ask_script

    async def noted(self: Script, client: Any, keys: Any, args: Any) -> Any:
        notes.note(self, client, keys)
        return await run(self, client, keys, args)

    def noted_too(self: Script, client: Any, keys: Any, args: Any) -> Any:
        notes.note(self, client, keys)
        return run_blocking(self, client, keys, args)

    def noted_in_pipeline(self: PipelinedClient, script: Script, keys: Any, args: Any, answered: Any) -> None:
        notes.note(script, self, keys)
        ask_script(self, script, keys, args, answered)

    monkeypatch.setattr(PipelinedClient, "ask_script", noted_in_pipeline)
    monkeypatch.setattr(Script, "run", noted)
    monkeypatch.setattr(Script, "run_blocking", noted_too)
    return notes


async def _leave_work_of_a_dead_process(client: Redis) -> dict[str, Any]:
    """Let an earlier process of the worker hold an ordinary job, a quarantined job, and one that had its deliveries."""
    jobs = await enqueue(client, 3)
    for entry, times in zip(await strand(client, 3, EARLIER), (1, 2, 3), strict=True):
        words = ("IDLE", 0, "RETRYCOUNT", times, "JUSTID")
        await client.execute_command("XCLAIM", STREAM, GROUP, EARLIER, 0, entry, *words)
    await client.hset(KEYS.quarantine, entry.decode(), "stream,3,0")  # it was released, and has reached its worker
    return jobs


async def _ask_for_everything(url: str) -> None:
    """Enqueue jobs that succeed, wait, fail, fail without counting, and are given up."""
    async with Producer(STREAM, url) as producer:
        await producer.enqueue_many([NewJob({"n": n}) for n in range(5)])
        await producer.enqueue({"n": "later"}, delay=0.2, job_id="later")
        for how in ("fail", "wait", "reject", "long"):
            await producer.enqueue({"n": how, how: "1"})


class Busy(Handler):
    """Also follows the fields ``wait`` (a retry that does not count, once) and ``long``."""

    async def __call__(self, job: Job) -> None:
        """Do what the job's fields say."""
        if b"wait" in job.fields and not job.waits:
            raise Retry("the service is down", delay=0.1, counts=False)
        if b"long" in job.fields:
            assert await job.extend()
        await super().__call__(job)


async def test_a_worker_and_a_reaper_live_for_long_with_their_own_rights_only(
    server: RedisServer, client: Redis, ran: Ran
) -> None:
    await client.execute_command("ACL", "LOG", "RESET")
    await create_group(client)
    await _leave_work_of_a_dead_process(client)
    stranded = await enqueue(client, 5)
    await strand(client, 5, overdue=True)
    urls = {role: await let_in(client, server, role) for role in Role}
    settings = {"name": "w", "refresh_s": 0.05, "backoff_base": 0.02, "redelivery": "retry-stream"}
    handler, policy = Busy(), "retry-stream"
    async with running_reaper(urls[Role.REAPER], consumer_retention=0.1, redelivery=policy) as reaper:
        await holds(reaper)
        async with running_worker(urls[Role.WORKER], handler, **settings) as worker:
            await _ask_for_everything(urls[Role.PRODUCER])
            await _gave_up(client, 3)
            await nothing_left(client)
            answer = await run_command(urls[Role.OPERATOR], "dead-letters", "redrive", KEYS.name, "--all")
            assert answer.code == 0, answer.err
            await _gave_up(client, 2)
            await nothing_left(client)
            await _refreshes(worker, ran, 3)
            await _looks_healthy(client, server)
    assert await denials(client) == []
    assert ran.wrong == []
    assert ran.by(Role.WORKER) >= {name for _, name in scripts_of(Role.WORKER, REAPER)} - SENT_OTHERWISE
    assert stranded.keys() <= {done.job for done in handler.completions}
    unused = {"report_lost", "look_at_group", "watch", *(name for _, name in scripts_of(Role.READ_ONLY, REAPER))}
    assert ran.by(Role.REAPER) >= {name for _, name in scripts_of(Role.REAPER, REAPER)} - unused


@pytest.mark.parametrize("policy", ["stream", by_claim("in-place")])
async def test_a_worker_that_recovers_by_itself_lives_for_long_with_its_own_rights_only(
    server: RedisServer, client: Redis, ran: Ran, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch.setattr)
    await client.execute_command("ACL", "LOG", "RESET")
    await create_group(client)
    await _leave_work_of_a_dead_process(client)
    stranded = await enqueue(client, 5)
    await strand(client, 5, overdue=True)
    urls = {role: await let_in(client, server, role, EMBEDDED) for role in roles_in(EMBEDDED)}
    settings = {"name": "w", "refresh_s": 0.05, "backoff_base": 0.02, "redelivery": policy}
    handler = Busy()
    async with running_worker(
        urls[Role.WORKER], handler, recovery=EMBEDDED, consumer_retention=0.1, **settings
    ) as worker:
        await _ask_for_everything(urls[Role.PRODUCER])
        await _gave_up(client, 3)
        await nothing_left(client)
        answer = await run_command(urls[Role.OPERATOR], "dead-letters", "redrive", KEYS.name, "--all")
        assert answer.code == 0, answer.err
        await _gave_up(client, 2)
        await nothing_left(client)
        await _refreshes(worker, ran, 3)
    assert await denials(client) == []
    assert ran.wrong == []
    assert stranded.keys() <= {done.job for done in handler.completions}
    assert ran.by(Role.WORKER) >= {name for _, name in scripts_of(Role.WORKER, EMBEDDED)} - SENT_OTHERWISE - {
        "look_at_group"
    }


async def _gave_up(client: Redis, number: int) -> None:
    async def given_up() -> bool:
        return await client.xlen(KEYS.dead) == number

    await wait_until(given_up, f"{number} jobs are dead letters")


async def _refreshes(worker: Worker, ran: Ran, times: int) -> None:
    """Wait until the worker has looked at its group so often again, and after each look for lost deliveries."""
    assert worker.process is not None
    membership = worker.process._context.membership
    before = membership.joins
    ran.scripts.discard((Role.WORKER.value, "adopt"))
    await wait_until(lambda: membership.joins >= before + times, f"{times} looks at the group")
    await wait_until(lambda: (Role.WORKER.value, "adopt") in ran.scripts, "stock is taken")


async def _looks_healthy(client: Redis, server: RedisServer) -> None:
    async with as_user(client, server, Role.READ_ONLY) as reader:

        async def healthy() -> bool:
            snapshot = await take_snapshot(reader, NAMESPACE)
            return not judge(snapshot) and bool(snapshot.groups)

        await wait_until(healthy, "who may only read sees a healthy service")


@pytest.mark.parametrize("words", [("status", "--groups"), ("explain", "1-1", "--group"), ("dead-letters", "list")])
async def test_who_may_only_read_can_use_the_commands_that_only_read(
    scene: Scene, server: RedisServer, words: Sequence[str]
) -> None:
    await scene.client.execute_command("ACL", "LOG", "RESET")
    url = await let_in(scene.client, server, Role.READ_ONLY)
    answer = await run_command(url, *words, KEYS.name)
    assert answer.code in (0, 1), answer.err
    assert await denials(scene.client) == []


async def test_who_may_only_read_sees_what_observers_watch(scene: Scene, server: RedisServer) -> None:
    observing, now = namespace_keys(observers_of("reaper")), await scene.now_ms()
    olga = a_replica("olga", at_ms=now, heartbeat_ms=SELDOM_MS, observe=True)
    await scene.client.hset(observing.replicas, olga.id, olga.to_json())
    await scene.client.hset(observing.groups, olga.id, KEYS.name)
    answer = await run_command(await let_in(scene.client, server, Role.READ_ONLY), "status", "--observe", "-o", "json")
    assert [group["group"] for group in answer.data["groups"]] == [KEYS.name]
    assert [replica["id"] for replica in answer.data["replicas"]] == ["olga-1-abc"]


async def test_an_operator_can_act(scene: Scene, server: RedisServer) -> None:
    await scene.client.execute_command("ACL", "LOG", "RESET")
    url = await let_in(scene.client, server, Role.OPERATOR)
    letter = await scene.client.execute_command("XADD", scene.keys.dead, "*", "n", 1, "reaper.job", "a")
    await scene.client.delete(scene.keys.lease)
    await scene.client.zadd(NAMESPACE.drained, {"alice": 9_999_999_999_999})
    for words in (
        ("drain", "alice", "--undo"), ("groups", "pause", KEYS.name), ("groups", "resume", KEYS.name),
        ("dead-letters", "redrive", KEYS.name, letter.decode()),
        ("dead-letters", "delete", KEYS.name, "--all", "--yes"), ("groups", "forget", KEYS.name, "--yes"),
    ):  # fmt: skip
        answer = await run_command(url, *words)
        assert answer.code == 0, (words, answer.err)
    assert await denials(scene.client) == []


# --- denied -------------------------------------------------------------------------------------------------

EVERYBODY = [(role, REAPER) for role in Role] + [(Role.WORKER, EMBEDDED)]
FORBIDDEN: list[tuple[str | int, ...]] = [
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", 0), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
    ("MONITOR",), ("CLIENT", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"), ("SCRIPT", "FLUSH"),
    ("SAVE",), ("XTRIM", STREAM, "MAXLEN", 0), ("XGROUP", "DESTROY", STREAM, GROUP),
    ("XGROUP", "SETID", STREAM, GROUP, "$"), ("RENAME", STREAM, KEYS.retry), ("XSETID", STREAM, "9-9"),
]  # fmt: skip


@pytest.mark.parametrize(("role", "mode"), EVERYBODY, ids=lambda one: one.value)
async def test_nobody_may_administer_the_server_break_streams_or_touch_keys_of_others(
    scene: Scene, server: RedisServer, role: Role, mode: RecoveryMode
) -> None:
    may_add = "xadd" in rules_of(role, mode, [KEYS], [NAMESPACE]).commands
    of_others = [("XADD", key, "*", "n", 1) if may_add else ("XLEN", key) for key in OTHERS]
    before = await scene.state()
    async with as_user(scene.client, server, role, mode) as user:
        for words in (*FORBIDDEN, *of_others):
            with pytest.raises(NoPermissionError):
                await user.execute_command(*words)
    assert await scene.state() == before


DENIED: dict[tuple[Role, RecoveryMode], list[tuple[str | int, ...]]] = {
    (Role.PRODUCER, REAPER): [
        ("XREADGROUP", "GROUP", GROUP, "w", "STREAMS", STREAM, ">"), ("XRANGE", STREAM, "-", "+"),
        ("XACK", STREAM, GROUP, "1-1"), ("XADD", KEYS.dead, "*", "n", 1), ("DEL", STREAM),
    ],
    (Role.WORKER, REAPER): [
        ("SET", KEYS.lease, "reaper:9:mallory"), ("DEL", KEYS.lease), ("XAUTOCLAIM", STREAM, GROUP, "w", 0, "0"),
        ("PUBLISH", KEYS.lease, "mallory"), ("ZADD", NAMESPACE.drained, 1, "alice"), ("HGETALL", NAMESPACE.replicas),
    ],
    (Role.WORKER, EMBEDDED): [
        ("SET", KEYS.lease, "reaper:9:mallory"), ("PUBLISH", KEYS.lease, "mallory"), ("HGETALL", NAMESPACE.replicas),
    ],
    (Role.REAPER, REAPER): [("XAUTOCLAIM", STREAM, GROUP, "w", 0, "0"), ("UNLINK", STREAM)],
    (Role.READ_ONLY, REAPER): [
        ("XADD", STREAM, "*", "n", 1), ("XACK", STREAM, GROUP, "1-1"), ("XDEL", STREAM, "1-1"), ("DEL", STREAM),
        ("SET", KEYS.lease, "x"), ("HSET", KEYS.settings, "paused", 1), ("EXPIRE", STREAM, 1),
        ("ZADD", KEYS.schedule, 1, "x"), ("EVAL", "return redis.call('DEL', KEYS[1])", 1, STREAM),
    ],
    (Role.OPERATOR, REAPER): [
        ("SET", KEYS.lease, "mallory"), ("XREADGROUP", "GROUP", GROUP, "w", "STREAMS", STREAM, ">"),
        ("XCLAIM", STREAM, GROUP, "w", 0, "1-1"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("role", "mode"), DENIED, ids=lambda one: one.value)
async def test_what_is_none_of_a_roles_business_is_denied(
    scene: Scene, server: RedisServer, role: Role, mode: RecoveryMode
) -> None:
    before = await scene.state()
    async with as_user(scene.client, server, role, mode) as user:
        for words in DENIED[role, mode]:
            with pytest.raises(ResponseError, match=r"(?i)NOPERM|no permissions|can't run this command"):
                await user.execute_command(*words)
    assert await scene.state() == before
