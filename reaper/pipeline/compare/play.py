"""Plays the drills, one after the other, as processes, each on a Redis of its own."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

import anyio

from reaper.drill.redis_server import Server, redis_at_hand
from reaper.pipeline.compare.scenarios import IDLE, LONGEST_S, WAYS, Scenario
from workers.protocol.errors import ConfigurationError, StreamReaperError
from workers.runtime.options import NEGATIVE_EXIT


class DrillFailedError(StreamReaperError):
    """A drill did not end with a report. The message has its output, line by line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a comparison."""

    scenarios: Sequence[Scenario]
    modes: Sequence[str]
    repeat: int = 1
    options: tuple[str, ...] = ()
    """Options of every drill for the trace and the seed."""

    def plays(self) -> Iterator[tuple[Scenario, str, int]]:
        """Return every drill to play. Modes take turns, so that a busy moment of the machine hits all of them."""
        for scenario in self.scenarios:
            for turn in range(self.repeat):
                for mode in self.modes:
                    yield scenario, mode, turn

    @property
    def shown_options(self) -> list[str]:
        """The options for people, without the trace's path, which is private."""
        traces = [at + 1 for at, word in enumerate(self.options) if word == "--trace"]
        return [Path(word).name if at in traces else word for at, word in enumerate(self.options)]

    def words(self, scenario: Scenario, mode: str) -> list[str]:
        """Return the command line of a drill, without options that differ from machine to machine."""
        options = ["--limit", "1"] if scenario.name == IDLE.name else list(self.options)
        return ["drill", *WAYS[mode].words, "--no-bare-worker", "--quiet", *scenario.words, *options]


@dataclass(frozen=True, slots=True)
class PlayedDrill:
    """One drill, and its report."""

    scenario: str
    mode: str
    turn: int
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Drills:
    """The result of a plan."""

    plan: Plan
    """The plan without the modes that the server does not support."""
    played: list[PlayedDrill]
    left_out: tuple[str, ...] = ()
    """A sentence for each mode that was not played."""


Tell = Callable[[str], None]
_PUT_AWAY_S = 20.0
"""How long a drill may take to end its processes."""
_PLAYED = (0, NEGATIVE_EXIT)
"""Exit codes of a drill that came to its end."""


async def play(plan: Plan, folder: Path, tell: Tell) -> Drills:
    """Play all drills in ``folder``.

    Raises DrillFailedError, NoServerError, or ConfigurationError if the server supports none of the modes.
    """
    played = []
    async with redis_at_hand(None, folder) as server:
        plan, left_out = await _within_reach(plan, server)
    plays = list(plan.plays())
    for number, (scenario, mode, turn) in enumerate(plays, start=1):
        tell(f"drill {number} of {len(plays)}: {scenario.name}, {mode}")
        file = folder / f"{scenario.name}-{mode.replace('/', '-')}-{turn}.json"
        report = await _drill(plan.words(scenario, mode), file)
        played.append(PlayedDrill(scenario.name, mode, turn, report))
    return Drills(plan, played, left_out)


async def _within_reach(plan: Plan, server: Server) -> tuple[Plan, tuple[str, ...]]:
    """Leave out the modes that the server does not support, with a sentence for each. Raises ConfigurationError."""
    wanting = [mode for mode in plan.modes if WAYS[mode].needs_claim]
    if not wanting or await server.knows_claim():
        return plan, ()
    left = [mode for mode in plan.modes if mode not in wanting]
    if not left:
        raise ConfigurationError(f"--mode {wanting[0]} {server.lacks_claim}")
    return replace(plan, modes=left), tuple(f"{mode} was not played: it {server.lacks_claim}" for mode in wanting)


async def _drill(words: Sequence[str], file: Path) -> dict[str, Any]:
    argv = [sys.executable, "-m", "reaper", *words, "--redis-url", "", "--output", str(file)]
    try:
        with anyio.fail_after(LONGEST_S):
            code, printed = await _run(argv)
    except TimeoutError as error:
        raise DrillFailedError(f"reaper {' '.join(words)} did not end within {LONGEST_S} s.") from error
    report = _read(file) if code in _PLAYED else None
    if report is None:
        last = printed.decode(errors="replace").splitlines()[-15:]
        errors = [number for number, line in enumerate(last) if line.startswith("error: ")]
        raise DrillFailedError(f"reaper {' '.join(words)} failed. It printed:", *last[errors[-1] if errors else 0 :])
    return report


async def _run(argv: Sequence[str]) -> tuple[int, bytes]:
    """Run a program to its end. Return its exit code and its output.

    After our cancellation, it gets time to end in order, because a drill has processes and a folder to remove. Ctrl-C
    reaches only this process.
    """
    process = await anyio.open_process(argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True)
    async with process:
        assert process.stdout is not None
        try:
            printed = [chunk async for chunk in process.stdout]
            return await process.wait(), b"".join(printed)
        except anyio.get_cancelled_exc_class():
            process.terminate()
            with anyio.move_on_after(_PUT_AWAY_S, shield=True):
                await process.wait()
            raise


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return report
