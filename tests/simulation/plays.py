"""The behavior of jobs when they run, as words in the payload, so that every kind of worker can play them.

For example, ``ok 3; raise 2`` means that the first execution succeeds after 3 s, and that each later one raises after
2 s. The ledger counts the executions. It is outside of the simulation, so no fault can change it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from reaper.drill.promises import Execution
from tests.simulation.loop import Process
from workers.loop.execution import Reject, Retry
from workers.loop.job import Job

FIELD = b"play"
QUARANTINED = b"reaper.quarantined"
OK, RAISE, RETRY, RETRY_COUNTED, RETURN_RETRY, REJECT, HANG, KILL, EXTEND, SWALLOW, BLOCK = VERBS = (
    "ok", "raise", "retry", "retry-counted", "return-retry", "reject", "hang", "kill", "extend", "swallow", "block",
)  # fmt: skip
GUILTY = frozenset({RAISE, RETRY_COUNTED, HANG, KILL, SWALLOW, BLOCK})
"""Executions with one of these ends may make a dead letter of their job."""

WORDS = {
    OK: "runs for {0:g} s",
    RAISE: "raises after {0:g} s",
    RETRY: "asks after {0:g} s to be retried, not counted",
    RETRY_COUNTED: "asks after {0:g} s to be retried",
    RETURN_RETRY: "returns after {0:g} s that it is to be retried, not counted",
    REJECT: "rejects itself after {0:g} s",
    HANG: "hangs",
    KILL: "kills its process after {0:g} s",
    EXTEND: "runs for {0:g} s and extends itself meanwhile",
    SWALLOW: "runs for {0:g} s, whoever cancels it",
    BLOCK: "blocks its event loop for {0:g} s",
}


@dataclass(frozen=True, slots=True)
class Act:
    """One execution, with its behavior and its duration in seconds."""

    verb: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verb} {self.seconds:g}"

    @property
    def sentence(self) -> str:
        """Its behavior in words."""
        return WORDS[self.verb].format(self.seconds)


Play = tuple[Act, ...]


def written(play: Play) -> bytes:
    """Return a play as text for a payload."""
    return "; ".join(map(str, play)).encode()


def read(payload: bytes) -> Play:
    """Return the play in a payload."""
    acts = (act.split() for act in payload.decode().split(";"))
    return tuple(Act(verb, float(seconds)) for verb, seconds in acts)


GROUP_LOST, LOST_DELIVERY = "group_destroyed", "lost_delivery"


class Telling(NamedTuple):
    """An error that a replica reports in its log, or a worker by a callback."""

    at: float
    """Seconds of the story."""
    error: str
    consumer: str = ""


class Dropped(NamedTuple):
    """A delivery that a third party deleted from the pending entries list."""

    at: float
    """Seconds of the story."""
    consumer: str
    """Its consumer, or '' if the whole group was deleted."""
    holder: str = ""
    """The process that ran it, if that is a live stream-reaper worker."""
    proven: float = 0.0
    """The time of its last heartbeat, in seconds of the story."""
    place: tuple[bytes, bytes] = (b"", b"")
    """The stream's key, and the entry's ID."""


@dataclass(slots=True)
class Ledger:
    """A record of all executions, which no fault can change."""

    enqueued: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    """The fields of all jobs that Redis has accepted for certain, by job ID."""
    starts: list[Execution] = field(default_factory=list)
    completions: list[Execution] = field(default_factory=list)
    endings: list[Execution] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Jobs that a third party of the story deleted from Redis."""
    dropped: dict[str, Dropped] = field(default_factory=dict)
    """The last deleted delivery of each job."""
    running: dict[Execution, set[str]] = field(default_factory=dict)
    """The processes that run each execution."""
    out_of_sight: Counter[str] = field(default_factory=Counter)
    """The number of reasons for which each role looks dead to the other ones."""
    begins: Callable[[str], None] = lambda _: None
    """Called with each process that begins an execution."""
    payloads: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    """The fields that executions found in their jobs."""
    _times: Counter[str] = field(default_factory=Counter)

    def start(self, execution: Execution, process: str, play: Play) -> Act:
        """Note that an execution begins, and return its behavior."""
        times = self._times[execution.job]
        self._times[execution.job] += 1
        self.starts.append(execution)
        self.running.setdefault(execution, set()).add(process)
        self.begins(process)
        if self.out_of_sight[process.partition("#")[0]]:
            self.blame(execution)
        return play[min(times, len(play) - 1)]

    def blame(self, execution: Execution) -> None:
        """Note that an execution fails, hangs, or ends its process."""
        self.endings.append(execution)

    def complete(self, execution: Execution) -> None:
        """Note that the work was done."""
        self.completions.append(execution)

    def leave(self, execution: Execution, process: str) -> None:
        """Note the end of an execution."""
        self.running.get(execution, set()).discard(process)

    def running_in(self, process: str) -> list[Execution]:
        """Return the executions that a process runs."""
        return [execution for execution, where in self.running.items() if process in where]


class ActedUpError(Exception):
    """The error that plays raise."""


class Stage:
    """The handler of stream-reaper workers, which plays the plays."""

    def __init__(self, ledger: Ledger, process: Process, kill: Any, block: Any) -> None:
        self._ledger = ledger
        self._process = process
        self._kill = kill
        self._block = block

    async def handle(self, job: Job) -> Any:
        """Run a job of the simulation."""
        execution = Execution(job.id, job.generation)
        ledger, name = self._ledger, self._process.name
        ledger.payloads.setdefault(job.id, list(job.pairs))
        act = ledger.start(execution, name, read(job.fields[FIELD]))
        if act.verb in GUILTY:
            ledger.blame(execution)
        try:
            answer = await self._act(act, job, execution)
            if act.verb in (OK, EXTEND, SWALLOW, BLOCK):
                ledger.complete(execution)
            return answer
        finally:
            ledger.leave(execution, name)

    async def _act(self, act: Act, job: Job, execution: Execution) -> Any:
        seconds = act.seconds
        match act.verb:
            case "extend":
                await self._extending(job, seconds)
            case "swallow":
                await _whatever(seconds)
            case "block":
                self._block(seconds)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            case "hang":
                await asyncio.get_running_loop().create_future()
            case _:
                await asyncio.sleep(seconds)
        match act.verb:
            case "raise":
                raise ActedUpError("as it was told")
            case "retry":
                raise Retry("not now", counts=False, delay=seconds / 2)
            case "retry-counted":
                raise Retry("not now, and it counts")
            case "return-retry":
                return Retry("not now", counts=False)
            case "reject":
                raise Reject("never")
            case "kill":
                self._kill(execution, fresh=QUARANTINED not in job.reserved)
                await asyncio.get_running_loop().create_future()
        return None

    async def _extending(self, job: Job, seconds: float) -> None:
        for _ in range(4):
            await asyncio.sleep(seconds / 4)
            with suppress(RedisError, OSError):  # out of reach, so the result is unknown
                if not await job.extend():
                    raise ActedUpError("lost")


async def _whatever(seconds: float) -> None:
    """Sleep, and let no cancellation disturb it."""
    until = asyncio.get_running_loop().time() + seconds
    while True:
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            return
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
