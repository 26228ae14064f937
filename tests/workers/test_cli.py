import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from reaper.drill.history import read_events
from tests.support.beats import let_beat
from tests.support.gate import Gate
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import KEYS, add, consumers_of, pending_of
from workers.cli import main
from workers.runtime.options import UNREACHABLE_EXIT, USAGE_EXIT

pytestmark = pytest.mark.anyio

PROGRAM = "tests.workers.program"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tests.workers.nothing"], "cannot import 'tests.workers.nothing'"),
        ([PROGRAM, "--concurrency", "0"], "'concurrency' (as flag --concurrency)"),
        ([PROGRAM, "--redis-url", "redis://:secret@127.0.0.1:1"], "redis://***@127.0.0.1:1"),
        ([PROGRAM, "--redis-url", "http://127.0.0.1"], "redis_url"),
        ([PROGRAM, "--config", "/not/there.toml"], "/not/there.toml"),
        ([PROGRAM, "--stream", "{orders}"], "only a hash tag"),
    ],
)
def test_what_cannot_work_ends_with_one_sentence_and_its_exit_code(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["run", *arguments])

    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert (result.exit_code, len(errors)) == (UNREACHABLE_EXIT if "127.0.0.1:1" in sentence else USAGE_EXIT, 1)
    assert sentence in errors[0]
    assert "Traceback" not in result.output


@pytest.mark.processes
async def test_a_worker_is_configured_by_flags_and_environment_and_drains_on_the_first_signal(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate
) -> None:
    worker = processes.worker(
        PROGRAM, "--redis-url", server.url, "--group", "audit", env={"REAPER_NAME": "w", "REAPER_GROUP": "ignored"}
    )
    await worker.prints("worker started: .* group=orders/audit")
    job = await add(client, {"wait": str(gate.path)})
    await worker.prints(f"started {job}")

    worker.terminate()
    await worker.prints("worker is stopping: .* drain_s=30")
    gate.open()

    assert await worker.wait() == 0
    assert [group["pending"] for group in await client.xinfo_groups(KEYS.stream)] == [0]
    assert " read=1 acked=1" in worker.output


@pytest.mark.processes
@pytest.mark.parametrize("target", [PROGRAM, f"{PROGRAM}:in_thread"])
async def test_the_second_signal_ends_it_at_once_and_leaves_what_runs_pending(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate, target: str
) -> None:
    worker = processes.worker(target, "--redis-url", server.url, "--drain-timeout", "3600")
    job = await add(client, {"wait": str(gate.path)})
    await worker.prints(f"started {job}")

    worker.interrupt()
    await worker.prints("worker is stopping: .* drain_s=3600")
    worker.interrupt()

    assert await worker.wait() == 1
    assert [(entry, times) for entry, _, times in await pending_of(client)] == [(job, 1)]


@pytest.mark.processes
async def test_a_restarted_worker_runs_what_the_killed_one_held(
    server: RedisServer, client: Redis, processes: Processes, gate: Gate
) -> None:
    """The killed one's job is made overdue at once, so recovery finds it long before its time is up."""
    flags = ("--redis-url", server.url, "--name", "w", "--recovery", "embedded", "--visibility-timeout", "600")
    await let_beat(client, KEYS)
    first = processes.worker(PROGRAM, *flags)
    job = await add(client, {"wait": str(gate.path)})
    await first.prints(f"started {job}")
    [killed] = await processes_of_w(client)
    first.kill()
    gate.open()

    second = processes.worker(PROGRAM, *flags)
    await second.prints(f"started {job}")
    await wait_until(lambda: nothing_pending(client), "the job is settled")
    second.terminate()

    assert await second.wait() == 0
    assert await processes_of_w(client) == [killed], "the next process of the name, or its retention, removes it"
    events = await read_events(client, KEYS)
    assert [(one.event, one.data["delivery"]) for one in events] == [("recovered", 1), ("acked", 2)]


async def processes_of_w(client: Redis) -> list[str]:
    return [name for name in await consumers_of(client) if name.startswith("w~")]


async def nothing_pending(client: Redis) -> bool:
    return await pending_of(client) == []
