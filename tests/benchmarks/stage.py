"""The surroundings of one benchmark, which are its own Redis and the processes that work on it."""

import io
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from tests.support.beats import let_beat_of
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer, started_server
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.keys import group_keys
from workers.protocol.server import knows_claim

SCRIPT_TIMEOUT_S = 60.0
"""Filling a stream is one long script call."""
END_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A server, a client on it, and how to start processes on it."""

    server: RedisServer
    client: Redis
    folder: Path
    _processes: Processes

    def reaper(self, *flags: str, name: str = "reaper", url: str = "", program: str = "reaper") -> Running:
        """Start ``python -m reaper run`` on this server, or at ``url``.

        ``program`` is another module to run, for example `tests.support.paced`.
        """
        if "--groups" in flags:  # else recovery would wait for a visibility timeout after the first heartbeat
            groups = flags[flags.index("--groups") + 1].split(",")
            let_beat_of(self.server.url, [group_keys(*group.split("/")) for group in groups])
        return self._run(program, *flags, *(("--redis-url", url) if url else ()), name=name)

    def worker(
        self,
        program: str,
        *flags: str,
        name: str = "worker",
        env: Mapping[str, str] | None = None,
        url: str = "",
    ) -> Running:
        """Start ``python -m workers run tests.benchmarks.programs:PROGRAM`` on this server, or at ``url``."""
        if "embedded" in flags:
            named = (flags[flags.index(name) + 1] for name in ("--stream", "--group"))
            let_beat_of(self.server.url, [group_keys(*named)])
        words = (f"tests.benchmarks.programs:{program}", *flags, *(("--redis-url", url) if url else ()))
        return self._run("workers", *words, name=name, env=env)

    def _run(self, module: str, *words: str, name: str, env: Mapping[str, str] | None = None) -> Running:
        return self._processes.python("-m", module, "run", "--redis-url", self.server.url, *words, name=name, env=env)

    def bare(self, command: str, *words: object, url: str = "") -> Running:
        """Start one of `tests.benchmarks.bare` on this server, or at ``url``."""
        arguments = (command, url or self.server.url, *map(str, words))
        return self._processes.python("-m", "tests.benchmarks.bare", *arguments, name=f"bare-{command}")

    def pacer(self, stream: str, jobs: int, per_second: float) -> Running:
        """Start `tests.benchmarks.pacer` on this server."""
        arguments = (str(self.server.port), stream, str(jobs), str(per_second))
        return self._processes.python("-m", "tests.benchmarks.pacer", *arguments, name="pacer")

    async def far_away(self, round_trip_ms: float) -> str:
        """Start `tests.benchmarks.distance` in front of this server. Return the URL of its far end."""
        words = ("-m", "tests.benchmarks.distance", str(self.server.port), str(round_trip_ms))
        forwarder = self._processes.python(*words, name="distance")
        await wait_until(lambda: forwarder.output.strip().isdecimal(), "the far end is there", END_TIMEOUT_S)
        return f"redis://127.0.0.1:{forwarder.output.strip()}/0"

    def busy_loop(self) -> Running:
        """Start a process that only computes."""
        return self._processes.python("-c", "while True: pass", name="busy")

    def bystander(self) -> Running:
        """Start `tests.benchmarks.bystander` on this server."""
        return self._processes.python("-m", "tests.benchmarks.bystander", str(self.server.port), name="bystander")


async def result_of(running: Running) -> Any:
    """Wait for the end of ``running`` and return what its last line of output says, as JSON."""
    code = await running.wait(END_TIMEOUT_S)
    if code != 0:
        raise RuntimeError(f"{running.name} ended with exit code {code}")
    return json.loads(running.output.splitlines()[-1])


async def stopped(*processes: Running) -> None:
    """Ask processes to end, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        await process.wait(END_TIMEOUT_S)


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """Start the newest Redis at hand. All processes that are started on it end with the block."""
    with tempfile.TemporaryDirectory(prefix="stream-reaper-bench-") as folder, started_server() as server:
        client = commands_client(server.url, timeout_s=SCRIPT_TIMEOUT_S)
        processes = Processes(Path(folder))
        try:
            yield Stage(server, client, Path(folder), processes)
        except BaseException:
            processes.end()  # prints the output of all processes
            raise
        finally:
            with redirect_stdout(io.StringIO()):
                processes.end()
            await client.aclose()


async def server_knows_claim() -> bool:
    """Tell whether the newest Redis at hand knows ``XREADGROUP … CLAIM`` (8.4)."""
    async with open_stage() as stage:
        return await knows_claim(stage.client, "jobs") is True
