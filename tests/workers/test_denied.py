"""A server that rejects one kind of call. No good job is given up, the rest goes on, and the log says it once."""

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from reaper.operations.acl import Role, rules_of
from tests.support.knobs import hurry
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import (
    KEYS,
    Holding,
    Runs,
    accept,
    enqueue,
    make_worker,
    pending_of,
    process_of,
    running,
    wait_for_settled,
)
from workers import Job, Reject
from workers.protocol.calls.group_moves import GroupMoves
from workers.protocol.calls.moves import Moves
from workers.protocol.errors import UnreachableError
from workers.protocol.messages import RecoveryMode

pytestmark = pytest.mark.anyio

USER = "restricted"


async def restrict(client: Redis, server: RedisServer, *changes: str, mode: RecoveryMode = RecoveryMode.REAPER) -> str:
    """Make a user with a worker's rights and these ``changes``. Return the URL of its connection."""
    words = rules_of(Role.WORKER, mode, [KEYS], []).words
    await client.execute_command("ACL", "SETUSER", USER, "reset", "on", ">p", *words, *changes)
    return f"redis://{USER}:p@127.0.0.1:{server.port}/0"


async def change_rights(client: Redis, *changes: str) -> None:
    await client.execute_command("ACL", "SETUSER", USER, *changes)


@pytest.fixture(autouse=True)
async def _without_user(client: Redis) -> AsyncIterator[None]:
    yield
    await client.execute_command("ACL", "DELUSER", USER)


def errors_in(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in lines if all(word in line for word in words)]


def noted_pauses(monkeypatch: pytest.MonkeyPatch, module: str) -> list[int]:
    """Let a module pause briefly after failures. Return the list of their numbers."""
    failures: list[int] = []

    def pause_s(failed: int) -> float:
        failures.append(failed)
        return 0.01

    monkeypatch.setattr(f"{module}.pause_s", pause_s)
    return failures


# ---- no good job is given up


@pytest.mark.parametrize("jobs", [1, 5])
async def test_acknowledgements_wait_until_the_right_is_given_back(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, jobs: int
) -> None:
    handler = Holding()
    await enqueue(client, *range(jobs))
    async with running(make_worker(await restrict(client, server), handler)) as worker:
        await handler.has_started(jobs)
        await change_rights(client, "-xack")
        handler.gate.set()
        await wait_until(lambda: errors_in(caplog, "Redis denies a call", "settling"), "it is told")
        await wait_until(lambda: worker.process and worker.process._settlements._failures >= 3, "it is tried again")
        assert (worker.counts.held, worker.counts.acked) == (0, 0)
        await change_rights(client, "+xack")
        await wait_for_settled(worker, jobs)

    assert (worker.counts.acked, worker.counts.held, len(handler.started)) == (jobs, 0, jobs)
    assert len(errors_in(caplog, "Redis denies a call", "settling")) == 1
    assert await pending_of(client) == []


async def test_a_dead_letter_that_may_not_be_written_keeps_no_acknowledgement_waiting_and_ends_one_span(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    async def handle(job: Job) -> None:
        if job.fields[b"n"] == b"1":
            raise Reject("malformed")

    await enqueue(client, 1, 2, 3)
    url = await restrict(client, server, "-xadd")
    async with running(make_worker(url, handle, journal=False)) as worker:
        await wait_until(lambda: worker.counts.acked == 2, "the others are acknowledged")
        await wait_until(lambda: worker.process and worker.process._settlements._failures >= 2, "it is tried again")
        assert worker.counts.held == 0
        assert "denied_s=" not in caplog.text, "a call that was answered settled nothing of what waits"
        await change_rights(client, "+xadd")
        await wait_until(lambda: worker.counts.dead_lettered == 1, "the dead letter is written")

    assert await pending_of(client) == []
    assert len(spans.get_finished_spans()) == 3
    assert "ended span" not in caplog.text


async def test_a_verdict_that_the_server_rejects_is_tried_again_and_keeps_no_other_one_waiting(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_rejected, ack = True, Moves.ack

    async def rejecting(moves: Moves, client: Any, source: str, ids: Sequence[bytes], **more: Any) -> object:
        if is_rejected and bad in ids:
            raise ResponseError("something without a code")
        return await ack(moves, client, source, ids, **more)

    async def handle(job: Job) -> None:
        if job.fields[b"n"] == b"4":
            raise Reject("malformed")

    monkeypatch.setattr(Moves, "ack", rejecting)
    bad = (await enqueue(client, 1, 2, 3))[0].encode()
    async with running(make_worker(server.url, handle)) as worker:
        await wait_until(lambda: worker.counts.acked == 2, "the others are acknowledged")
        await enqueue(client, 4)
        await wait_until(lambda: worker.counts.dead_lettered == 1, "other verdicts are settled")
        is_rejected = False
        await wait_until(lambda: worker.counts.acked == 3, "it is settled, too")
    assert (worker.counts.held, await pending_of(client)) == (0, [])


# ---- proof of life


@pytest.mark.parametrize(
    ("recovery", "right"),
    [(RecoveryMode.REAPER, "xclaim"), (RecoveryMode.REAPER, "xpending"), (RecoveryMode.EMBEDDED, "xrange")],
)
async def test_a_worker_that_may_not_prove_its_life_does_not_begin(
    server: RedisServer, client: Redis, right: str, recovery: RecoveryMode
) -> None:
    """Its long jobs would be recovered from under it, run again and again, and be given up."""

    await enqueue(client, 1)
    url = await restrict(client, server, f"-{right}", mode=recovery)
    with pytest.raises(
        UnreachableError, match=r"cannot join group orders/billing: .*`reaper acl` prints the permissions"
    ):
        await make_worker(url, accept, recovery=recovery).run()
    assert await pending_of(client) == []


async def test_an_extension_that_extends_nothing_does_not_say_that_extending_works(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where all that could not be extended has been recovered meanwhile."""
    failures = noted_pauses(monkeypatch, "workers.loop.heartbeat")
    handler = Holding()
    hurry(monkeypatch.setattr)
    [job_id] = await enqueue(client, 1)
    async with running(make_worker(await restrict(client, server), handler, visibility_timeout=3_600)):
        await handler.has_started()
        await change_rights(client, "-xclaim")
        await wait_until(lambda: errors_in(caplog, "Redis denies a call", "sending heartbeats"), "extending is denied")
        await client.execute_command("XCLAIM", KEYS.stream, KEYS.group, "thief", 0, job_id)
        tried = len(failures)
        await wait_until(lambda: len(failures) > tried + 3, "it is tried again")
        assert not errors_in(caplog, "Redis answers again", 'part="sending heartbeats"', "denied_s=")
        await change_rights(client, "+xclaim")
        await wait_until(
            lambda: errors_in(caplog, "Redis answers again", 'part="sending heartbeats"', "denied_s="), "it works"
        )
        handler.gate.set()


# ---- everything else goes on


async def test_a_worker_that_may_not_adopt_reads_on(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the rules of an older version, when a script has gained a key."""
    monkeypatch.setattr("workers.loop.reading.ADOPTION_PAUSE_S", 0.02)
    ran = Runs()
    url = await restrict(client, server)
    words = [word for word in rules_of(Role.WORKER, RecoveryMode.REAPER, [KEYS], []).words if "quarantine" not in word]
    await change_rights(client, "reset", "on", ">p", *words)
    async with running(make_worker(url, ran, refresh_s=0.05)) as worker:
        membership = process_of(worker)._context.membership
        joins = membership.joins
        await wait_until(lambda: membership.joins >= joins + 3, "stock was to be taken three times")
        await enqueue(client, 1, 2, 3)
        await wait_until(lambda: len(ran) == 3, "what is new is run")
        assert any("adopting" in why for why in process_of(worker).denials)
        await change_rights(client, f"~{KEYS.quarantine}")
        await wait_for_settled(worker, 3)
    assert len(errors_in(caplog, "Redis denies a call", "adopting")) == 1


async def test_an_embedded_worker_that_may_not_claim_reads_on(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.loop.reading.ADOPTION_PAUSE_S", 0.02)
    hurry(monkeypatch.setattr)
    ran = Runs()
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    await enqueue(client, 0)
    await client.xreadgroup(KEYS.group, "gone", {KEYS.stream: ">"})
    [(entry, _, _)] = await pending_of(client)
    await client.execute_command("XCLAIM", KEYS.stream, KEYS.group, "gone", 0, entry, "IDLE", 7_200_000, "JUSTID")
    url = await restrict(client, server, mode=RecoveryMode.EMBEDDED)
    async with running(make_worker(url, ran, recovery="embedded", visibility_timeout=3_600)) as worker:
        process = process_of(worker)
        await change_rights(client, "-xclaim")
        await wait_until(lambda: any("recovering" in why for why in process.denials), "recovery is denied")
        await enqueue(client, 1, 2, 3)
        await wait_until(lambda: len(ran) == 3, "what is new is run")
        await change_rights(client, "+xclaim")
        await wait_for_settled(worker, 4)
    assert len(errors_in(caplog, "Redis denies a call", "recovering stalled deliveries")) == 1


@pytest.mark.parametrize(
    ("call", "part", "error"),
    [
        ("recover_page", "recovering", NoPermissionError("no right")),
        ("move_due", "moving", AuthenticationError("wrong password")),
    ],
)
async def test_a_call_that_was_rejected_is_no_obstacle_any_more_once_a_reaper_makes_it(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch, call: str, part: str, error: RedisError
) -> None:
    async def reject(*_: object, **__: object) -> None:
        raise error

    hurry(monkeypatch.setattr)
    monkeypatch.setattr(GroupMoves, call, reject)
    async with running(make_worker(server.url, accept, recovery="embedded", refresh_s=0.05)) as worker:
        process = process_of(worker)
        await wait_until(lambda: process.denials, f"{part} is rejected")
        await client.set(KEYS.lease, "replica.nonce@60000", px=60_000)
        await client.hset(KEYS.settings, "recovery", "reaper")
        await wait_until(lambda: not process.denials, "the worker is ready")


async def test_a_worker_whose_every_read_is_denied_says_so_once(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = noted_pauses(monkeypatch, "workers.loop.reading")
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    url = await restrict(client, server, "-xreadgroup")
    async with running(make_worker(url, accept)):
        await wait_until(lambda: len(failures) > 20, "reading was denied many times")
        await change_rights(client, "+xreadgroup")
        await wait_until(
            lambda: errors_in(caplog, "Redis answers again", "part=reading", "denied_s="), "it is told that it works"
        )
    assert len(errors_in(caplog, "Redis denies a call", "reading")) == 1


@pytest.mark.parametrize("right", ["xclaim", "xpending"])
async def test_a_right_that_is_given_back_when_nothing_is_in_hand_is_noticed_all_the_same(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    """Otherwise the worker is not ready until its next job, and gets no job while it is not ready."""
    hurry(monkeypatch.setattr)
    handler = Holding()
    await enqueue(client, 1)
    url = await restrict(client, server)
    async with running(make_worker(url, handler, visibility_timeout=1, journal=False)) as worker:
        await handler.has_started()
        await change_rights(client, f"-{right}")
        await wait_until(lambda: errors_in(caplog, "Redis denies a call", "sending heartbeats"), "it is told")
        handler.gate.set()
        if right == "xclaim":  # the settling client needs the other one
            await wait_for_settled(worker, 1)
        await change_rights(client, f"+{right}")
        process = process_of(worker)
        await wait_until(lambda: not process.denials, "it is ready again")
        await wait_for_settled(worker, 1)
    assert errors_in(caplog, "Redis answers again", 'part="sending heartbeats"', "denied_s=")
