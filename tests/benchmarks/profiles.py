"""Turns what the sampling profiler and the server's counters found into the parts of a whole."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.figures import Breakdown
from tests.benchmarks.sampled import START_SIGNAL
from tests.benchmarks.server_load import Calls
from tests.support.processes import Running

LEAST_SHARE = 0.02
"""Smaller parts are added up as the rest."""
REST = "the rest"

_INSIDE = frozenset({"hdel", "hset", "xack", "xadd", "xautoclaim", "xclaim", "xdel", "xpending", "xrange"})
"""Commands that scripts call and hardly anybody else."""

OWN = ("workers", "reaper")
LIBRARIES = {
    "tests": "programs.py: the handler",
    "redis": "redis-py: commands out, replies in",
    "asyncio": "asyncio: event loop, streams, tasks",
    "selectors": "asyncio: event loop, streams, tasks",
    "anyio": "anyio: task groups, events, cancel scopes",
}


def start(program: Running) -> None:
    """Have a program that runs under `tests.benchmarks.sampled` sampled from now on."""
    os.kill(program.pid, START_SIGNAL)


def of_program(title: str, file: Path) -> Breakdown:
    """Read what `tests.benchmarks.sampled` wrote: our modules one by one, libraries as a whole."""
    samples: Counter[str] = Counter()
    for module, _, count in json.loads(file.read_text()):
        samples[_part(module)] += count
    return Breakdown(title, _parts(samples))


def _part(module: str) -> str:
    package = module.partition(".")[0]
    return module if package in OWN else LIBRARIES.get(package, "the standard library, and what it is called by")


def of_scripts(title: str, calls: Mapping[str, Calls], entries: int) -> Breakdown:
    """Split the server time of script calls into the commands they call and the rest, in µs an entry."""
    inside = {name.upper(): found.us for name, found in calls.items() if name in _INSIDE}
    total = calls["evalsha"].us
    lua = {"Lua itself, and calling commands from it": total - sum(inside.values())}
    costs = sorted((inside | lua).items(), key=lambda cost: -cost[1])
    shown = [(what, us) for what, us in costs if us >= LEAST_SHARE * total]
    rest = total - sum(us for _, us in shown)
    return Breakdown(
        title, tuple((what, f"{us / entries:.2f} µs") for what, us in [*shown, (REST, rest), ("in all", total)])
    )


def _parts(samples: "Counter[str]") -> tuple[tuple[str, str], ...]:
    total = samples.total()
    shown = [(what, count) for what, count in samples.most_common() if count >= LEAST_SHARE * total]
    rest = total - sum(count for _, count in shown)
    return tuple((what, f"{count / total:.0%}") for what, count in [*shown, (REST, rest)])
