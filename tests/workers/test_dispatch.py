"""Handlers by the type of a job: their choice, rejected registrations, and jobs without a handler."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.support.servers import RedisServer
from tests.workers.scene import KEYS, add, dead_letters, field_of, make_job, pending_of, running, wait_for_settled
from workers import ConfigurationError, Job, Worker
from workers.loop.handlers import Handler
from workers.testing import Acknowledged, Failed, run_handler

pytestmark = pytest.mark.anyio


def worker_of(done: list[tuple[str, str]], *, default: bool = False, **settings: Any) -> Worker:
    """Return a worker of two handlers, and perhaps a default one, which note what they run."""
    worker = Worker("orders", "billing", job_type_field="kind", **settings)

    @worker.handler("sms")
    async def send(job: Job) -> None:
        done.append(("send", job.text("kind")))

    @worker.handler("push", "gr\u00fc\u00dfe")
    def push(job: Job) -> None:
        assert threading.current_thread() is not threading.main_thread()
        done.append(("push", job.text("kind")))

    if default:

        @worker.handler
        async def rest(job: Job) -> None:
            done.append(("rest", job.text("kind", "-")))

    return worker


@pytest.mark.parametrize(
    ("fields", "handler"),
    [
        ({"kind": "sms"}, ("send", "sms")),
        ({"kind": "push"}, ("push", "push")),
        ({"kind": "gr\u00fc\u00dfe"}, ("push", "gr\u00fc\u00dfe")),
        ([("kind", "push"), ("kind", "sms")], ("send", "sms")),
        ({"kind": "SMS"}, ("rest", "SMS")),
        ({"kind": ""}, ("rest", "")),
        ({"no": "kind"}, ("rest", "-")),
    ],
)
def test_a_job_is_run_by_the_handler_for_its_type_or_by_the_default_one(fields: Any, handler: tuple[str, str]) -> None:
    done: list[tuple[str, str]] = []
    assert run_handler(worker_of(done, default=True), fields) == Acknowledged()
    assert done == [handler]


def test_decorators_return_the_function_and_may_be_stacked() -> None:
    worker = Worker(job_type_field="kind")

    async def send(job: Job) -> None: ...

    assert worker.handler("a")(worker.handler("b")(worker.handler(send))) is send
    for fields in ({"kind": "a"}, {"kind": "b"}, {"kind": "c"}):
        assert run_handler(worker, fields) == Acknowledged()


# ---- rejected


@pytest.mark.parametrize(
    ("register", "sentence"),
    [
        (lambda worker, run: worker.handler("sms")(run), "jobs of type 'sms' already have a handler, worker_of.*send"),
        (lambda worker, run: worker.handler("a", "a")(run), "jobs of type 'a' already have a handler, .*run"),
        (lambda worker, run: worker.handler("")(run), "'' is not a job type"),
        (lambda worker, run: worker.handler("a", 7)(run), "7 is not a job type"),
        (lambda worker, _run: worker.handler("a")(int), "the class int cannot be a handler"),
    ],
)
def test_what_cannot_be_registered_is_rejected_with_a_sentence_and_changes_nothing(
    register: Callable[[Worker, Handler], object], sentence: str
) -> None:
    async def run(job: Job) -> None: ...

    done: list[tuple[str, str]] = []
    worker = worker_of(done)
    with pytest.raises(ConfigurationError, match=sentence):
        register(worker, run)
    assert run_handler(worker, {"kind": "sms"}) == Acknowledged()
    assert isinstance(run_handler(worker, {"kind": "a"}), Failed)


async def test_a_field_that_was_taken_away_when_the_worker_was_deployed_is_missed_before_it_begins() -> None:
    worker = worker_of([])
    worker.configure(flags={"job_type_field": ""})
    with pytest.raises(ConfigurationError, match="the field of the type is unknown"):
        await worker.run()


async def test_the_field_that_the_deployment_names_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_JOB_TYPE_FIELD", "type")
    done: list[tuple[str, str]] = []
    worker = worker_of(done)
    job = make_job(b"type", b"sms", b"kind", b"x")
    await worker.handlers.calls(worker.settings).invoke(job)
    assert done == [("send", "x")]


# ---- jobs that no handler is for


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"kind": "mail"}, "of type 'mail' (field 'kind')"),
        ({"kind": "a\nb"}, r"of type 'a\nb' (field 'kind')"),
        ({"kind": b"\xff" + b"x" * 100}, "of type '\\\\xff" + "x" * 60 + "' (field 'kind')"),
        ({"other": "sms"}, "without a type (it has no field 'kind')"),
    ],
)
def test_a_job_of_an_unknown_type_fails(fields: Any, what: str) -> None:
    sentence = f"no handler for a job {what}: this worker has handlers for 'sms', 'push', 'gr\u00fc\u00dfe'"
    assert run_handler(worker_of([]), fields) == Failed(f"UnknownTypeError: {sentence}")


# ---- in a worker


async def test_a_worker_dispatches_and_gives_up_what_it_has_no_handler_for(server: RedisServer, client: Redis) -> None:
    done: list[tuple[str, str]] = []
    worker = worker_of(done, redis_url=server.url, max_deliveries=1)
    for kind in ("sms", "mail", "push"):
        await add(client, {"kind": kind})
    async with running(worker):
        await wait_for_settled(worker, 3)

    assert sorted(done) == [("push", "push"), ("send", "sms")]
    [(_, letter)] = await dead_letters(client)
    assert field_of(letter, b"kind") == b"mail"
    assert field_of(letter, b"reaper.dead.reason") == b"max_deliveries"
    assert field_of(letter, b"reaper.dead.error").startswith(b"UnknownTypeError: no handler for a job of type 'mail'")
    assert await pending_of(client) == []
    assert {event.data["type"] for event in await read_events(client, KEYS)} == {"sms", "mail", "push"}
