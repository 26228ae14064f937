"""Describes the machine of a benchmark, without names of hosts, users or folders."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import sleep

from tests.benchmarks.usage import busy_ticks

LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, as far as it matters for the results."""

    hardware: str
    software: str
    load: str


def describe(server: str) -> Machine:
    """Look at this machine for a second, while nothing of ours runs."""
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    packages = ", ".join(f"{name} {version(name)}" for name in ("redis", "hiredis", "anyio", "stream-reaper"))
    return Machine(
        hardware=f"{_processor()}, {os.cpu_count()} cores, {memory_gb:.0f} GB of memory",
        software=f"{_system()}, {server}, Python {platform.python_version()}, {packages}",
        load=f"Other load: {_busy_share():.0%}",
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _busy_share() -> float:
    busy, ticks = busy_ticks()
    sleep(LOOK_S)
    busy_later, ticks_later = busy_ticks()
    return (busy_later - busy) / max(1, ticks_later - ticks)
