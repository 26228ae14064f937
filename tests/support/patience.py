"""The patience of tests. It is counted in events, and in seconds that are longer on a slow machine.

A limit of seconds by the clock says how busy the machine was, not whether something is wrong. So a limit counts only
idle time, in which the observed value stayed the same, and the processes of the test neither ran nor wanted to. And a
second is longer on a slow machine, which is measured once at the start of a run.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from statistics import median

PATIENCE_S = 60.0
"""How long nothing may happen while a test waits, on the machine of `_REFERENCE_S`. Costs a failing test a minute."""

SLOWNESS = "STREAM_REAPER_SLOWNESS"
"""The environment variable that hands `slowness` to other processes of a run. Whoever sets it decides."""

_REFERENCE_S = 0.025
"""What a round of `measured` takes on two cores of a small virtual machine that has nothing else to do."""
_ROUNDS = 9
_SLOWEST = 20.0

_LONGEST_TURN_S = 0.5
_LOOK_EVERY_S = 1.0
_NOTHING_YET = object()
_BUSY_COUNTS = 1 / 8
"""Some busy loops get nowhere: time in which processes were busy counts for so much, so that all waits end."""


# --- how slow this machine is -------------------------------------------------------------------------------


@cache
def slowness() -> float:
    """Return the factor by which this machine is slower than the reference machine, at least 1."""
    told = os.environ.get(SLOWNESS)
    return max(1.0, float(told)) if told else measured()


def scaled(seconds: float) -> float:
    """Return ``seconds``, as long as they have to be on this machine."""
    return seconds * slowness()


def measured() -> float:
    """Measure `slowness` in a fraction of a second, as the median of rounds of typical work."""
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        _round()
        times.append(time.perf_counter() - began)
    return round(min(max(1.0, median(times) / _REFERENCE_S), _SLOWEST), 2)


def _round() -> None:
    """Compute a little, and start a process."""
    total = 0
    for number in range(200_000):
        total += number * number & 7
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)


# --- the work of our processes


def _read(path: str) -> str:
    """Return what a small file holds.

    It uses no file object, because the watchdog may end a test in the middle of it.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4_096).decode(errors="replace")
    finally:
        os.close(file)


def busy_times() -> dict[int, float]:
    """Return how many seconds each thread of this process and its descendants was busy.

    Busy is a thread that runs, or would if it was given a processor. Empty where the kernel does not tell.
    """
    found: dict[int, float] = {}
    for pid in _family(os.getpid()):
        with suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - thousands of them
                with suppress(OSError):
                    ran, waited, _ = _read(f"/proc/{pid}/task/{thread}/schedstat").split()
                    found[int(thread)] = (int(ran) + int(waited)) / 1e9
    return found


def _family(root: int) -> list[int]:
    """Return a process and its descendants, as far as there is a /proc."""
    children: dict[int, list[int]] = {}
    with suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of them
            if name.isdecimal():
                with suppress(OSError):
                    parent = _read(f"/proc/{name}/stat").rpartition(")")[2].split()[1]
                    children.setdefault(int(parent), []).append(int(name))
    family = [root]
    for pid in family:
        family += children.get(pid, ())
    return family


# --- progress


_beats = 0


def beat() -> None:
    """Note progress of the test. Its watchdog begins anew."""
    global _beats
    _beats += 1


def beats() -> int:
    """Return a number that is another one after a `beat` in this process."""
    return _beats


class Patience:
    """Runs out after ``limit_s`` seconds without progress. Ask it again and again.

    ``now`` are seconds of any clock that goes forward, a virtual one too. The work of our processes is read only after
    a second of waiting, because it costs milliseconds. During a turn longer than ``longest_turn_s``, the machine slept,
    or gave us no time. It counts for so much and no more.
    """

    def __init__(self, now: float, limit_s: float = PATIENCE_S, *, longest_turn_s: float = _LONGEST_TURN_S) -> None:
        self.limit_s = scaled(limit_s)
        self.idle_s = 0.0
        """How long nothing has happened."""
        self._now, self._longest_turn_s = now, longest_turn_s
        self._known: Mapping[int, float] | None = None
        self._since_look_s = 0.0
        self._seen: object = _NOTHING_YET

    def is_new(self, now: float, seen: object) -> bool:
        """Return whether ``seen`` has changed since the last time. A change restores the patience."""
        before, self._seen = self._seen, seen
        if before is _NOTHING_YET or before == seen:
            return False
        self._now, self.idle_s, self._since_look_s = now, 0.0, 0.0
        return True

    def is_over(self, now: float) -> bool:
        """Take a turn. Return whether patience has run out."""
        self._since_look_s += min(now - self._now, self._longest_turn_s)
        self._now = now
        if self._since_look_s >= _LOOK_EVERY_S or self.idle_s + self._since_look_s >= self.limit_s:
            self._look()
        return self.idle_s >= self.limit_s

    def _look(self) -> None:
        """Count the time since the last look, without the time in which our processes were busy."""
        before, self._known = self._known, busy_times()
        busy_s = _difference(before, self._known) if before is not None else 0.0
        self.idle_s += max(self._since_look_s - busy_s, self._since_look_s * _BUSY_COUNTS)
        self._since_look_s = 0.0


def _difference(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return how busy all threads were in between, those that began then too. Threads that have ended are removed."""
    return sum(max(0.0, busy_s - before.get(thread, 0.0)) for thread, busy_s in after.items())
