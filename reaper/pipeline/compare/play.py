"""Plays the drills, one after the other, as processes on a Redis of their own that keeps what they leave."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import anyio

from reaper.drill.redis_server import Server, redis_at_hand
from reaper.pipeline.compare.scenarios import IDLE, Scenario
from workers.protocol.errors import StreamReaperError
from workers.runtime.options import INTERRUPTED_EXIT

LONGEST_S = 900.0
"""No drill takes longer; one that hangs is ended."""


class DrillFailedError(StreamReaperError):
    """A drill came to no end that could be compared. The message holds what it printed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    scenarios: Sequence[Scenario]
    modes: Sequence[str]
    repeat: int = 1
    options: tuple[str, ...] = ()
    """Options of every drill: the trace, how much of it, the seed."""

    def plays(self) -> Iterator[tuple[Scenario, str, int]]:
        """Return every drill to play. Modes take turns, so that a busy moment of the machine hits all of them."""
        for scenario in self.scenarios:
            for turn in range(self.repeat):
                for mode in self.modes:
                    yield scenario, mode, turn

    @property
    def shown_options(self) -> list[str]:
        """The options for people: where the trace lies is nobody's business."""
        traces = [at + 1 for at, word in enumerate(self.options) if word == "--trace"]
        return [Path(word).name if at in traces else word for at, word in enumerate(self.options)]

    def words(self, scenario: Scenario, mode: str) -> list[str]:
        """Return the command line of a drill, without what differs from machine to machine."""
        options = ["--limit", "1"] if scenario.name == IDLE.name else list(self.options)
        return ["drill", "--recovery", mode, "--no-bare-worker", "--quiet", *scenario.words, *options]


@dataclass(frozen=True, slots=True)
class Played:
    """One drill, and its report."""

    scenario: str
    mode: str
    turn: int
    report: dict[str, Any]


Tell = Callable[[str], None]


async def play(plan: Plan, folder: Path, tell: Tell, ingest: Callable[[str], None]) -> list[Played]:
    """Play all drills in ``folder``; then call ``ingest`` with the address of the Redis that holds their journals.

    Raises DrillFailedError, NoServerError.
    """
    plays = list(plan.plays())
    played = []
    async with redis_at_hand(None, folder) as server:
        for number, (scenario, mode, turn) in enumerate(plays, start=1):
            tell(f"drill {number} of {len(plays)}: {scenario.name}, {mode}")
            report = await _drill(plan.words(scenario, mode), server, folder / f"{scenario.name}-{mode}-{turn}.json")
            played.append(Played(scenario.name, mode, turn, report))
        await anyio.to_thread.run_sync(ingest, server.url)
    return played


async def _drill(words: Sequence[str], server: Server, file: Path) -> dict[str, Any]:
    where = ["--redis-url", server.url, "--redis-pid", str(server.pid), "--keep-keys", "--json", str(file)]
    argv = [sys.executable, "-m", "reaper", *words, *where]
    try:
        with anyio.fail_after(LONGEST_S):
            done = await anyio.run_process(argv, check=False, stdout=PIPE, stderr=STDOUT)
    except TimeoutError as error:
        raise DrillFailedError(f"reaper {' '.join(words)} did not end within {LONGEST_S:g} s.") from error
    report = _read(file)
    if report is None or done.returncode == INTERRUPTED_EXIT:
        last = "\n".join(done.stdout.decode(errors="replace").splitlines()[-15:])
        raise DrillFailedError(f"reaper {' '.join(words)} failed. It printed:\n{last}")
    return report


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report
