"""CPU time and memory of a process, from Linux's ``/proc``."""

import os
from pathlib import Path

MICROSECONDS_PER_TICK = 1_000_000 / os.sysconf("SC_CLK_TCK")
_PEAK = "VmHWM"


Pid = int | str
"""A process ID, or ``self``."""


def cpu_us(pid: Pid) -> float:
    """Return the CPU time that process ``pid`` (all its threads) has used, in µs; as fine as a clock tick (10 ms)."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(after_name[11]), int(after_name[12])
    return (user + system) * MICROSECONDS_PER_TICK


def peak_mb(pid: Pid) -> float:
    """Return the highest resident memory since the start, or since `forget_peak`, in MB (10^6 bytes)."""
    return _memory_mb(pid, _PEAK)


def forget_peak(pid: Pid) -> None:
    """Restart the peak of `peak_mb` from the memory of this moment."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _memory_mb(pid: Pid, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1_000_000
    raise RuntimeError(f"/proc/{pid}/status has no {name}: the process has ended")


def busy_ticks() -> tuple[int, int]:
    """Return the ticks that all cores were busy, and all ticks, since the machine started."""
    ticks = [int(number) for number in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
