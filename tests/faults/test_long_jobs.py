"""Real processes at a visibility timeout of 2 s, with jobs that last longer, and a fault. No live worker loses a job.

Two workers run 14 jobs, and a third one, which runs 6, is killed shortly before the fault. Its jobs have to run again
after the fault, and those of the others must not.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.faults import long_jobs_program, scene
from tests.support.clock import ServerClock
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import in_matrix
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.messages import text

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

VISIBILITY_S = 2.0
LEASE_S = 1.5
DOOMED, LIVE = 6, 14
BEFORE = 0.3
"""The third worker is killed so many visibility timeouts before the fault."""
STARVED_S = VISIBILITY_S / 2
"""A worker that the machine did not run for so long can miss its heartbeats: that is no fault of ours."""


async def lasts(timeouts: float) -> None:
    """Return after so many visibility timeouts."""
    began = time.monotonic()
    await wait_until(lambda: time.monotonic() - began >= timeouts * VISIBILITY_S, "the fault is over")


@dataclass
class Play:
    """The processes of one test, and the notes of the jobs."""

    server: RedisServer
    clock: ServerClock
    client: Redis
    processes: Processes
    folder: Path
    recovery: str
    replicas: list[Running] = field(default_factory=list)

    def start_replica(self) -> Running:
        """Start a replica of the reaper."""
        values = {"groups": scene.KEYS.name, "visibility-timeout": VISIBILITY_S, "lease-ttl": LEASE_S}
        flags = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        self.replicas.append(self.processes.reaper(*flags, "--redis-url", self.server.url))
        return self.replicas[-1]

    def start_worker(self, concurrency: int) -> Running:
        """Start a worker."""
        values: dict[str, object] = {
            "redis-url": self.server.url,
            "stream": scene.STREAM,
            "group": scene.GROUP,
            "recovery": self.recovery,
            "concurrency": concurrency,
        }
        if self.recovery == "embedded":
            values["visibility-timeout"] = VISIBILITY_S
        flags = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        env = {long_jobs_program.NOTES: str(self._notes), long_jobs_program.GATE: str(self._gate)}
        return self.processes.worker("tests.faults.long_jobs_program:worker", *flags, env=env)

    async def begins(self) -> None:
        """Start the replicas, and wait until one of them serves the group."""
        await scene.create_group(self.client)
        if self.recovery == "reaper":
            self.start_replica()
            self.start_replica()
            await wait_until(lambda: scene.token_of(self.client), "a replica serves the group")

    async def started(self, number: int) -> None:
        """Wait for so many starts in all."""
        await wait_until(lambda: self.starts().total() >= number, f"{number} jobs have started")

    def starts(self) -> Counter[str]:
        """Return how often each job was started."""
        return Counter(job for what, job, _ in self._lines() if what == "start")

    def longest_pause_s(self, *workers: Running) -> float:
        """Return for how long the machine did not run one of these workers, at most."""
        pids = {str(worker.pid) for worker in workers}
        return max((float(value) for what, value, pid in self._lines() if what == "late" and pid in pids), default=0)

    def open_gate(self) -> None:
        """Let all jobs go on."""
        self._gate.touch()

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self._notes.read_text().splitlines()] if self._notes.exists() else []

    @property
    def _notes(self) -> Path:
        return self.folder / "notes"

    @property
    def _gate(self) -> Path:
        return self.folder / "gate"


@pytest.fixture
def recovery() -> str:
    """The recovery of the group. A test can choose another one."""
    return "reaper"


@pytest.fixture
async def play(
    recovery: str, binary: Path, clock: ServerClock, processes: Processes, tmp_path: Path
) -> AsyncIterator[Play]:
    """A server with an adjustable clock and lasting data, and the group's replicas, if it has any."""
    folder = tmp_path / "redis"
    folder.mkdir()
    config = {"appendonly": "yes", "appendfsync": "always"}
    server = RedisServer(binary, folder, config=config, environment=clock.environment)
    with ExitStack() as running:
        running.callback(server.kill)
        server.start()
        async with commands_client(server.url) as client:
            play = Play(server, clock, client, processes, tmp_path, recovery)
            await play.begins()
            yield play


# ---- faults


async def frozen(timeouts: float, play: Play) -> None:
    """Freeze the server."""
    play.server.pause()
    await lasts(timeouts)
    play.server.resume()


async def frozen_again_and_again(play: Play) -> None:
    """Freeze the server five times, each for less than a gap."""
    for _ in range(5):
        await frozen(0.3, play)
        await lasts(0.15 / VISIBILITY_S)


async def restarted(timeouts: float, play: Play) -> None:
    """Stop the server, and start it with its data."""
    play.server.stop()
    await lasts(timeouts)
    play.server.start()


async def clock_set(*ahead_s: float, play: Play) -> None:
    """Set the server's clock, several times if asked for."""
    for step_s in ahead_s:
        play.clock.step_to(step_s)
        await lasts(0.2)


async def denied(command: str, timeouts: float, play: Play) -> None:
    """Deny a command to all users."""
    play.server.command("ACL", "SETUSER", "default", f"-{command}")
    await lasts(timeouts)
    play.server.command("ACL", "SETUSER", "default", f"+{command}")


async def holder_killed(play: Play) -> None:
    """Kill the replica that holds the lease."""
    lease = text(await play.client.get(scene.KEYS.lease) or b"")
    [holder] = [replica for replica in play.replicas if f"-{replica.pid}-" in lease]
    holder.kill()


async def both_replicas_away(play: Play) -> None:
    """Kill both replicas, and start another one after two visibility timeouts."""
    for replica in play.replicas:
        replica.kill()
    await lasts(2)
    play.start_replica()


Fault = Callable[..., Awaitable[None]]
FAULTS: dict[str, Fault] = {
    "frozen for 0.5 V": partial(frozen, 0.5),
    "frozen for 0.9 V": partial(frozen, 0.9),
    "frozen for 1.5 V": partial(frozen, 1.5),
    "frozen five times": frozen_again_and_again,
    "restarted after 0.5 V": partial(restarted, 0.5),
    "restarted after 1.5 V": partial(restarted, 1.5),
    "clock 1 s ahead": partial(clock_set, 1),
    "clock 4 s ahead": partial(clock_set, 4),
    "clock 4 s ahead and back": partial(clock_set, 4, 0),
    "clock 12 s ahead": partial(clock_set, 12),
    "clock an hour ahead": partial(clock_set, 3_600),
    "clock an hour back": partial(clock_set, -3_600),
    "XCLAIM denied for 1.2 V": partial(denied, "xclaim", 1.2),
}
SOME = ("frozen for 1.5 V", "restarted after 0.5 V", "clock an hour ahead", "clock an hour back", "both replicas away")
"""The faults of `make test`. Its simulated stories have all of these faults, in many lengths, and the matrix has the
rest."""
OF_REPLICAS: dict[str, Fault] = {"holder killed": holder_killed, "both replicas away": both_replicas_away}


@pytest.mark.parametrize("name", [name if name in SOME else in_matrix(name) for name in (*FAULTS, *OF_REPLICAS)])
async def test_live_workers_keep_their_jobs_and_those_of_a_dead_one_run_again(play: Play, name: str) -> None:
    await judge(play, {**FAULTS, **OF_REPLICAS}[name])


@pytest.mark.parametrize("recovery", [in_matrix("embedded")])
@pytest.mark.parametrize("name", FAULTS)
async def test_so_they_do_where_workers_recover(play: Play, name: str) -> None:
    await judge(play, FAULTS[name])


async def judge(play: Play, fault: Fault) -> None:
    """Have the fault befall the server or the replicas, and judge what came of it."""
    doomed = play.start_worker(DOOMED)
    dead = set(await scene.enqueue(play.client, DOOMED))
    await play.started(DOOMED)
    workers = [play.start_worker(DOOMED + LIVE) for _ in range(2)]
    live = set(await scene.enqueue(play.client, LIVE))
    await play.started(DOOMED + LIVE)

    async def recovers() -> bool:
        return await scene.recovery_waits(play.client) is None

    await wait_until(recovers, "recovery waits for nothing before the fault")
    doomed.kill()
    await lasts(BEFORE)
    await fault(play=play)

    await wait_until(lambda: all(play.starts()[job] > 1 for job in dead), "the dead worker's jobs run again")
    recovered = {event.job for event in await scene.events(play.client, "recovered")}
    play.open_gate()
    await scene.nothing_left(play.client)
    robbed = live & (recovered | {job for job, times in play.starts().items() if times > 1})
    assert not robbed or play.longest_pause_s(*workers) > STARVED_S, f"{len(robbed)} of {LIVE} were taken"
    assert all(worker.running for worker in workers)
