"""The cost of traces: throughput with exported traces, and a tenth of the jobs sampled.

Two worker processes drain jobs that do no work. A producer's trace context is in every job. In one arm the workers
export spans by OTLP/HTTP to a sink that answers at once. In the other arm telemetry is off. The arms take turns.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

import anyio
from redis.asyncio import Redis

from tests.benchmarks.figures import Result, Row, at_least_ratio, median_ratio
from tests.benchmarks.stage import open_stage, stopped
from tests.benchmarks.streams import progress, server_ms
from tests.support.waiting import wait_until
from workers.protocol.keys import group_keys

JOBS, QUICK_JOBS = 100_000, 50_000
ROUNDS, QUICK_ROUNDS = 7, 3
WORKERS = 2
KEYS = group_keys("jobs", "billing")
FLAGS = ("--stream", KEYS.stream, "--group", KEYS.group, "--concurrency", "64")
DEMANDED_RATIO = 0.65
TIMEOUT_S = 120.0
POLL_S = 0.005
SAMPLED_OF = 10

_ENQUEUE = """
for i = 1, tonumber(ARGV[1]) do
  redis.call('XADD', KEYS[1], '*', 'payload', ARGV[2], 'traceparent',
    string.format('00-%032x-%016x-0%d', i, i, i % tonumber(ARGV[3]) == 0 and 1 or 0))
end
local time = redis.call('TIME')
return time[1] * 1000 + math.floor(time[2] / 1000)
"""


async def measure(*, quick: bool) -> Result:
    """Drain with and without telemetry, in turn."""
    jobs, rounds = (QUICK_JOBS, QUICK_ROUNDS) if quick else (JOBS, ROUNDS)
    told, untold = [], []
    with _sink() as endpoint:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_METRICS_EXPORTER": "none"}
        for _ in range(rounds):
            told.append(await _drain(jobs, env))
            untold.append(await _drain(jobs, {}))
    row = Row(
        f"no-op jobs settled by {WORKERS} processes, one of {SAMPLED_OF} traced", median(told), "/s", median(untold),
        at_least_ratio(DEMANDED_RATIO), median_ratio(told, untold),
    )  # fmt: skip
    return Result((row,))


async def _drain(jobs: int, env: Mapping[str, str]) -> float:
    """Return how many jobs a second were settled."""
    async with open_stage() as stage:
        workers = [stage.worker("worker", *FLAGS, env=env) for _ in range(WORKERS)]
        await wait_until(lambda: _all_wait(stage.client), f"{WORKERS} workers wait for jobs", TIMEOUT_S)
        began_ms: int = await stage.client.eval(_ENQUEUE, 1, KEYS.stream, str(jobs), "x" * 100, str(SAMPLED_OF))
        with anyio.fail_after(TIMEOUT_S):
            while not (await progress(stage.client, KEYS)).done:  # noqa: ASYNC110 - no event of ours
                await anyio.sleep(POLL_S)
        ended_ms = await server_ms(stage.client)
        await stopped(*workers)
    return jobs / (ended_ms - began_ms) * 1000


async def _all_wait(client: Redis) -> bool:
    return int((await client.info("clients"))["blocked_clients"]) == WORKERS


@contextmanager
def _sink() -> Iterator[str]:
    """Take every export and look at none."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # as collectors do, it keeps connections

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
