"""Foreign workers are served unchanged. They are the examples in `docs/examples`, run as processes.

The example in another language needs Node. It is collected where ``node`` is on the PATH, as it is in continuous
integration, and only there.
"""

import hashlib
import itertools
import random
import re
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.drill.cast import BARE_WORKER
from reaper.drill.history import user_fields
from reaper.drill.promises import Pairs
from tests.conftest import StartProxy
from tests.faults import scene
from tests.support.processes import ROOT, Processes, Running
from tests.support.proxy import Proxy, command
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.messages import text

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

EXAMPLES = ROOT / "docs" / "examples"
LANGUAGES = ["python", *(["node"] if shutil.which("node") else [])]
in_every_language = pytest.mark.parametrize("language", LANGUAGES)
JOBS = 8
PAYLOAD = bytes(range(256)) + "\r\n$5\r\nπ{}".encode() + b"\0\xff\xfe"

POLICIES = pytest.mark.parametrize("policy", ["stream", "retry-stream"])


def start_bare_worker(processes: Processes, server: RedisServer | Proxy, language: str, consumer: str) -> Running:
    """Start an example as a foreign worker would be started."""
    words = (scene.STREAM, scene.GROUP, consumer)
    if language == "node":
        return processes.start("node", str(EXAMPLES / "bare_worker.js"), str(server.port), *words, name=consumer)
    url = f"{server.url}?protocol=2"  # a proxy speaks no newer one
    return processes.python(str(EXAMPLES / "bare_worker.py"), *words, env={"REDIS_URL": url}, name=consumer)


def printed(worker: Running, what: str) -> list[Sequence[str]]:
    """Return the words of the lines in which a bare worker says ``what``, either start or done."""
    return [line.split() for line in worker.output.splitlines() if line.startswith(f"{what} ")]


@in_every_language
async def test_the_job_of_a_killed_bare_worker_is_run_by_the_next_one(
    server: RedisServer, client: Redis, processes: Processes, proxy: StartProxy, language: str
) -> None:
    through = await proxy(server)
    await scene.create_group(client)
    done = await scene.enqueue(client, JOBS, payload=PAYLOAD, duration_ms="0")
    (stuck,) = await scene.enqueue(client, 1, payload=PAYLOAD, duration_ms="0")
    last_word = through.hold_request(command("XACK"), nth=JOBS + 1)
    async with scene.running_reaper(server.url):
        first = start_bare_worker(processes, through, language, "first")
        await last_word.wait()
        first.kill()
        await scene.make_overdue(client, "first")
        second = start_bare_worker(processes, server, language, "second")
        await scene.nothing_left(client)
        await wait_until(lambda: printed(second, "done"), "the second one is done")
    assert [words[2] for words in printed(first, "done")] == [*done, stuck]
    assert [words[1] for words in printed(second, "done")] == ["0"]
    digest = hashlib.sha256(PAYLOAD).hexdigest()
    assert {words[-1] for worker in (first, second) for words in printed(worker, "start")} == {digest}
    (recovered,) = await scene.events(client, "recovered")
    assert (recovered.job, recovered.data["consumer"]) == (stuck, "first")
    assert await scene.violations(client, {}) == []


@in_every_language
async def test_bare_workers_that_share_a_group_with_the_reaper_run_each_job_once(
    server: RedisServer, client: Redis, processes: Processes, language: str
) -> None:
    await scene.create_group(client)
    async with scene.running_reaper(server.url):
        workers = [start_bare_worker(processes, server, language, f"bare-{n}") for n in range(2)]
        await scene.enqueue(client, 60, payload=PAYLOAD, duration_ms="5")
        await scene.nothing_left(client)

        def done() -> list[int]:
            return sorted(int(words[1]) for worker in workers for words in printed(worker, "done"))

        await wait_until(lambda: len(done()) >= 60, "all are done")
    assert done() == list(range(60))
    assert await scene.count_events(client) == {}


def test_the_bare_worker_of_the_documentation_is_the_one_of_the_drill_and_has_at_most_30_lines() -> None:
    example = EXAMPLES / "bare_worker.py"
    assert example.is_symlink()
    assert not example.readlink().is_absolute()
    assert example.resolve() == BARE_WORKER.resolve()
    assert len(example.read_text().splitlines()) <= 30


# --- byte for byte ------------------------------------------------------------------------------------------

AWKWARD: dict[str, Pairs] = {
    "every byte": [(bytes(range(256)), bytes(reversed(range(256))))],
    "a name twice": [(b"tag", b"a"), (b"other", b"x"), (b"tag", b"b"), (b"tag", b"a")],
    "order": [(b"z", b"1"), (b"a", b"2"), (b"m", b"3")],
    "empty": [(b"", b""), (b"empty", b"")],
    "line ends": [(b"a\r\n", b"\r\n$-1\r\n*3\r\n"), (b"\0", b"\0\0")],
    "no utf-8": [(b"\xff\xfe", b"\xc3\x28"), ("schlüssel".encode("latin-1"), "π".encode("utf-16"))],
    "numbers that a script may round": [(b"n", b"9007199254740993"), (b"f", b"1e400"), (b"i", b"-0")],
    "json that a script may rewrite": [(b"j", rb'{"a": [1.0, 1e2], "b": "\u00e9", "a": 2}')],
    "a prefix like ours": [(b"reaper", b"x"), (b"reaper_job", b"y"), (b"Reaper.job", b"z")],
    "long": [(b"payload", random.Random(1).randbytes(100_000))],
    "many": [(b"f%d" % n, b"v%d" % n) for n in range(1_000)],
}

OURS = [
    *(b"reaper.job", b"reaper.deliveries", b"reaper.generation", b"reaper.first_ms", b"reaper.consumers"),
    b"reaper.copies",
]


async def add(client: Redis, pairs: Pairs) -> str:
    """Add an entry exactly so."""
    entry_id = await client.execute_command("XADD", scene.STREAM, "*", *itertools.chain.from_iterable(pairs))
    return text(entry_id)


async def read_raw(client: Redis, key: str, consumer: str) -> list[tuple[str, list[bytes]]]:
    """Read as a bare worker does. Fields are as they are on the wire."""
    reply: Any = await client.execute_command(
        "XREADGROUP", "GROUP", scene.GROUP, consumer, "COUNT", 100, "STREAMS", key, ">"
    )
    return [(text(entry_id), flat) for _, entries in reply or () for entry_id, flat in entries]


@POLICIES
async def test_the_users_fields_arrive_byte_for_byte_after_recovery_and_after_being_quarantined(
    server: RedisServer, client: Redis, policy: str
) -> None:
    await scene.create_group(client)
    expected = {await add(client, pairs): list(pairs) for pairs in AWKWARD.values()}
    key = scene.STREAM if policy == "stream" else scene.KEYS.retry
    settings: dict[str, Any] = {"redelivery": policy, "max_deliveries": 3}
    arrived: dict[str, list[Pairs]] = {job: [] for job in expected}
    async with scene.running_reaper(server.url, **settings) as reaper:
        await scene.holds(reaper)
        await wait_until(lambda: client.exists(key), "the stream to read from is there")
        await scene.strand(client, len(AWKWARD), overdue=True)

        async def read_on() -> bool:
            """Let each job come back twice. At first it is recovered, then quarantined: one delivery is left."""
            for entry_id, flat in await read_raw(client, key, "reader"):
                ours = [*OURS, b"reaper.quarantined"] if flat[-2] == b"reaper.quarantined" else OURS
                assert flat[-2 * len(ours) :: 2] == ours, "the user's fields come first"
                job = text(flat[1 - 2 * len(ours)])
                arrived[job].append(user_fields(flat))
                if len(arrived[job]) == 2:
                    await client.xack(key, scene.GROUP, entry_id)
            await scene.make_overdue(client, "reader")
            return all(len(times) == 2 for times in arrived.values())

        await wait_until(read_on, "all jobs have come back twice")
    assert arrived == {job: [pairs, pairs] for job, pairs in expected.items()}


@POLICIES
async def test_dead_letters_hold_the_users_fields_byte_for_byte(
    server: RedisServer, client: Redis, policy: str
) -> None:
    await scene.create_group(client)
    expected = {await add(client, pairs): list(pairs) for pairs in AWKWARD.values()}
    await scene.strand(client, len(AWKWARD), overdue=True)
    async with scene.running_reaper(server.url, redelivery=policy, max_deliveries=1):
        await scene.nothing_left(client)
    assert await scene.violations(client, expected, finished=True, max_deliveries=1) == []
    letters: Any = await client.xrange(scene.KEYS.dead)
    assert [user_fields(flat) for _, flat in letters] == list(expected.values())


async def test_a_foreign_reader_of_the_retry_stream_needs_nothing_but_a_second_stream_in_its_read(
    server: RedisServer, client: Redis
) -> None:
    await scene.create_group(client)
    async with scene.running_reaper(server.url, redelivery="retry-stream"):
        await wait_until(lambda: client.exists(scene.KEYS.retry), "the retry stream is there")
        await add(client, [(b"n", b"1")])
        await scene.strand(client, 1, overdue=True)
        await wait_until(lambda: scene.events(client, "recovered"), "it is recovered")
        reply: Any = await client.execute_command(
            "XREADGROUP", "GROUP", scene.GROUP, "second", "STREAMS", scene.STREAM, scene.KEYS.retry, ">", ">"
        )
        ((key, ((entry_id, flat),)),) = reply
        assert (text(key), user_fields(flat)) == (scene.KEYS.retry, [(b"n", b"1")])
        assert await client.xack(key, scene.GROUP, entry_id) == 1
        await scene.nothing_left(client)
    assert re.fullmatch(r"\d+-\d+", text(entry_id))
