"""The end of `worker run`: nothing that a handler left running puts it off, and a handler that exits is no success."""

import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from reaper.drill.history import read_state
from tests.support.gate import Gate
from tests.support.loops import LOOPS, loop_environment, on_a_loop
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import in_matrix
from tests.telemetry.otlp import Received, receiver
from tests.workers.ending_program import EXITING, LEAVING, WAITING
from tests.workers.scene import KEYS, add, dead_letters, enqueue, field_of, make_worker, number_of, pending_of
from workers import HandlerExitError, Job

pytestmark = pytest.mark.anyio

PROGRAM = "tests.workers.ending_program"


@pytest.fixture
def exported() -> Iterator[Received]:
    """The metrics that workers export."""
    with receiver() as received:
        yield received


@pytest.fixture
def loop_env(loop: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that uses this event loop."""
    return loop_environment(loop, tmp_path)


async def started(server: RedisServer, processes: Processes, name: str, *flags: str, **env: str) -> Running:
    """Return a worker that has begun to work."""
    worker = processes.worker(f"{PROGRAM}:{name}", "--redis-url", server.url, *flags, env=env)
    await worker.prints("worker started")
    return worker


# ---- threads and tasks that keep a process alive

both_loops = pytest.mark.parametrize("loop", LOOPS)


@both_loops
@pytest.mark.processes
@pytest.mark.parametrize("name", ["worker", "in_thread"])
async def test_handlers_that_cannot_be_cancelled_end_with_the_process_and_are_handed_back(
    server: RedisServer,
    client: Redis,
    processes: Processes,
    gate: Gate,
    loop_env: dict[str, str],
    exported: Received,
    name: str,
) -> None:
    worker = await started(
        server, processes, name, "--drain-timeout", "0.1", OTEL_EXPORTER_OTLP_ENDPOINT=exported.endpoint, **loop_env
    )
    handlers = WAITING if name == "worker" else [None]
    jobs = [await add(client, {"do": getattr(one, "__name__", ""), "gate": str(gate.path)}) for one in handlers]
    for job in jobs:
        await worker.prints(f"started {job}")

    worker.terminate()

    assert await worker.wait() == 0
    assert f" read={len(jobs)} handed_back={len(jobs)}" in worker.output
    assert "messaging.client.operation.duration" in exported.metrics
    assert sorted((await read_state(client, KEYS)).ready) == jobs
    assert await pending_of(client) == []


@both_loops
@pytest.mark.processes
async def test_leftovers_of_handlers_end_with_the_process(
    server: RedisServer,
    client: Redis,
    processes: Processes,
    gate: Gate,
    loop_env: dict[str, str],
    exported: Received,
) -> None:
    worker = await started(
        server, processes, "worker", "--drain-timeout", "1", OTEL_EXPORTER_OTLP_ENDPOINT=exported.endpoint, **loop_env
    )
    for one in LEAVING:
        job = await add(client, {"do": one.__name__, "gate": str(gate.path)})
        await worker.prints(f"started {job}")

    worker.terminate()

    assert await worker.wait() == 0
    assert f" read={len(LEAVING)} acked={len(LEAVING)}" in worker.output
    assert "process exits without waiting" in worker.output
    assert "messaging.client.operation.duration" in exported.metrics


# ---- the ends of a process


@pytest.mark.processes
@pytest.mark.parametrize(("do", "loop"), on_a_loop([*(one.__name__ for one in EXITING), "plain"]))
async def test_a_handler_that_exits_ends_the_worker_with_exit_code_1_and_its_job_has_failed(
    server: RedisServer, client: Redis, processes: Processes, loop_env: dict[str, str], exported: Received, do: str
) -> None:
    name = "in_thread" if do == "plain" else "worker"
    worker = await started(
        server, processes, name, "--max-deliveries", "1", OTEL_EXPORTER_OTLP_ENDPOINT=exported.endpoint, **loop_env
    )
    job = await add(client, {"do": "exit" if do == "plain" else do})

    assert await worker.wait() == 1

    error = "KeyboardInterrupt" if do == "be_interrupted" else "SystemExit: 0"
    told = f"a handler stopped the worker: group=orders/billing job={job} entry={job} delivery=1 consumer=.* cause="
    assert re.search(f'ERROR workers: {told}"?{error}"?$', worker.output, re.MULTILINE)
    assert "ending_program.py" in worker.output
    assert "messaging.client.operation.duration" in exported.metrics
    [(_, letter)] = await dead_letters(client)
    assert field_of(letter, b"reaper.dead.error") == error.encode()
    assert await pending_of(client) == []


@pytest.mark.processes
async def test_a_callback_that_exits_is_told_as_well(server: RedisServer, client: Redis, processes: Processes) -> None:
    worker = await started(server, processes, "reporting")
    await enqueue(client, 1)

    assert await worker.wait() == 1
    assert "callback failed: event=dead_lettered" in worker.output
    assert "SystemExit: 0" in worker.output


@pytest.mark.processes
@pytest.mark.parametrize(("do", "error"), [("exit_in_task", "SystemExit: 0"), ("cancel_all_tasks", "CancelledError")])
@pytest.mark.parametrize("loop", ["asyncio", in_matrix("uvloop")])
async def test_a_task_that_exits_or_cancels_all_ends_the_worker_with_exit_code_1(
    server: RedisServer, client: Redis, processes: Processes, loop_env: dict[str, str], do: str, error: str
) -> None:
    worker = await started(server, processes, "worker", **loop_env)
    await add(client, {"do": do})

    assert await worker.wait() == 1
    assert re.search("ERROR .* stopped the worker", worker.output)
    assert error in worker.output


async def test_in_a_program_of_ones_own_it_is_an_error_of_run(server: RedisServer, client: Redis) -> None:
    both_run = anyio.Event()

    async def handle(job: Job) -> None:
        if number_of(job) == 1:
            both_run.set()
            await anyio.sleep_forever()
        await both_run.wait()
        raise SystemExit(3)

    waiting, exiting = await enqueue(client, 1, 2)
    worker = make_worker(server.url, handle, concurrency=2)
    with pytest.raises(HandlerExitError, match=f"job {exiting} of orders/billing ended the worker: SystemExit: 3"):
        await worker.run()

    assert await pending_of(client) == [(waiting, worker.consumer, 1)]
    counts = worker.counts
    assert (counts.nacked, counts.abandoned) == (1, 1)
