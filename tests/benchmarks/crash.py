"""The cost of a crash: a worker with 200 jobs in flight is killed, in each recovery mode.

Two workers with 200 slots each run jobs of some tenths of a second, with a visibility timeout of 5 s. One of them is
killed with -9 under load. The overshoot of a delivery is the time from the end of its visibility timeout to its
recovery, on the server's clock. A job that had finished before it was settled finishes twice.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reaper.drill.history import read_events, read_state, user_fields
from reaper.drill.promises import Execution, Fate, History, check, fates
from tests.benchmarks.figures import Result, Row, at_most, spread
from tests.benchmarks.holding import until_held
from tests.benchmarks.programs import LEDGER
from tests.benchmarks.stage import Stage, open_stage, stopped
from tests.benchmarks.streams import create_group, delivered_at, enqueue, progress
from tests.support.processes import Running
from tests.support.waiting import wait_until
from workers.loop.settlement import SETTLE_BATCH
from workers.protocol.events import EventName
from workers.protocol.keys import group_keys
from workers.protocol.messages import RecoveryMode, text

JOBS, KILL_AFTER = 2_400, 800
SLOTS = 200
ROUNDS, QUICK_ROUNDS = 2, 1
VISIBILITY_S = 5.0
VISIBILITY = ("--visibility-timeout", str(VISIBILITY_S))
BATCH = SETTLE_BATCH
DEMANDED_MS = 250.0
TIMEOUT_S = 60.0
KEYS = group_keys("jobs", "billing")


@dataclass(frozen=True, slots=True)
class _Crash:
    """One crash and its result."""

    in_flight: int
    lost: int
    """Jobs that nobody finished."""
    twice: int
    """Jobs that were finished twice."""
    late_ms: list[float]
    """Overshoot of each delivery."""


async def measure(*, quick: bool) -> Result:
    """Kill workers, in each mode that the server serves, in turn."""
    crashes: dict[RecoveryMode, list[_Crash]] = {mode: [] for mode in RecoveryMode}
    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
        for mode, found in crashes.items():
            found.append(await _crash(mode))
    return Result(tuple(row for mode, found in crashes.items() for row in _rows(mode, found)))


def _rows(mode: RecoveryMode, crashes: list[_Crash]) -> list[Row]:
    in_flight = sum(one.in_flight for one in crashes) / len(crashes)
    late = spread([late_ms for crash in crashes for late_ms in crash.late_ms])
    within = at_most(DEMANDED_MS) if mode is RecoveryMode.REAPER else None
    return [
        Row(f"{mode}: deliveries in flight at the kill, on average", in_flight),
        Row(f"{mode}: jobs lost", sum(one.lost for one in crashes), demand=at_most(0)),
        Row(f"{mode}: jobs finished twice, worst crash", max(one.twice for one in crashes), demand=at_most(BATCH)),
        Row(f"{mode}: overshoot p50", late.p50, "ms"),
        Row(f"{mode}: overshoot max", late.max, "ms", demand=within),
    ]


async def _crash(mode: RecoveryMode) -> _Crash:
    async with open_stage() as stage:
        await create_group(stage.client, KEYS)
        ledger = stage.folder / "ledger"
        reaper = await _reaper(stage) if mode is RecoveryMode.REAPER else None
        killed, healthy = [_worker(stage, mode, ledger) for _ in range(2)]
        consumer = (await killed.prints(r"worker started: consumer=(\S+)"))[1]
        await healthy.prints("worker started")
        await enqueue(stage.client, KEYS.stream, JOBS)
        jobs: Any = await stage.client.xrange(KEYS.stream)
        await wait_until(lambda: len(_finished(ledger)) >= KILL_AFTER, "there is plenty to do", TIMEOUT_S)
        killed.kill()
        in_flight = await _held_by(stage, consumer)
        ends = {
            text(entry_id): at_ms + VISIBILITY_S * 1000
            for entry_id, at_ms in (await delivered_at(stage.client, KEYS, JOBS)).items()
        }

        async def done() -> bool:
            return (await progress(stage.client, KEYS)).done

        await wait_until(done, "every job is settled", TIMEOUT_S)
        await stopped(healthy, *([reaper] if reaper else []))
        finished = Counter(_finished(ledger))
        history = History(
            enqueued={text(entry_id): user_fields(fields) for entry_id, fields in jobs},
            state=await read_state(stage.client, KEYS),
            events=await read_events(stage.client, KEYS),
            completions=[Execution(job) for job in finished.elements()],
            visibility_ms=round(VISIBILITY_S * 1000),
        )
    assert check(history) == []
    recovered = [one for one in history.events if one.event == EventName.RECOVERED]
    assert len(recovered) == in_flight, f"{in_flight} deliveries were in flight, {len(recovered)} were recovered"
    return _Crash(
        in_flight,
        lost=sum(fate is Fate.LOST for fate in fates(history).values()),
        twice=sum(times > 1 for times in finished.values()),
        late_ms=[one.at_ms - ends[one.data["entry"]] for one in recovered],
    )


async def _reaper(stage: Stage) -> Running:
    reaper = stage.reaper("--groups", KEYS.name, *VISIBILITY)
    await until_held(stage.client, KEYS)
    return reaper


def _worker(stage: Stage, mode: RecoveryMode, ledger: Path) -> Running:
    flags = ("--stream", KEYS.stream, "--group", KEYS.group, "--concurrency", str(SLOTS), *VISIBILITY)
    return stage.worker("finisher", *flags, "--recovery", mode.value, env={LEDGER: str(ledger)})


def _finished(ledger: Path) -> list[str]:
    """Return the IDs of the jobs that were finished, as often as they were."""
    lines = ledger.read_text() if ledger.exists() else ""
    return re.findall(r"^(\S+) \S+$", lines, re.MULTILINE)


async def _held_by(stage: Stage, consumer: str) -> int:
    rows: Any = await stage.client.execute_command("XPENDING", KEYS.stream, KEYS.group, "-", "+", JOBS, consumer)
    return len(rows)
