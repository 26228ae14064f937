"""Runs a module as a program under a sampling profiler: ``python -m tests.benchmarks.sampled FILE MODULE WORDS…``.

From `START_SIGNAL` on, every two milliseconds of CPU time (or what the kernel makes of that) a signal interrupts the
program and the function it is in is counted. Time that C code takes is counted for the function that called it. The
counts are written to FILE when the program ends.
"""

import atexit
import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY_S = 0.002
START_SIGNAL = signal.SIGUSR1

Function = tuple[str, str]


def main() -> None:
    """Sample until the program ends."""
    file, module, *words = sys.argv[1:]
    samples: Counter[Function] = Counter()

    def sample(_number: int, frame: FrameType | None) -> None:
        if frame is not None:
            samples[frame.f_globals.get("__name__", "?"), frame.f_code.co_qualname] += 1

    def write() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        rows = [[*function, count] for function, count in samples.most_common()]
        Path(file).write_text(json.dumps(rows))

    atexit.register(write)
    signal.signal(signal.SIGPROF, sample)
    signal.signal(START_SIGNAL, lambda *_: signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
