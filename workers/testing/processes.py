"""Starts child processes that cannot outlive us, not even where we are ended by kill -9.

On Linux a child asks the kernel to kill it when its parent dies (``PR_SET_PDEATHSIG``). It asks through a trampoline
that then becomes the program, with the same process ID: ``preexec_fn`` would run Python between fork and exec. To the
kernel the parent is the *thread* that started the child, so start it from one that lives long enough.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_TRAMPOLINE = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != parent:
    os._exit(1)  # the parent died before we asked
os.execvp(sys.argv[2], sys.argv[2:])
"""


def tied_to_us(argv: Sequence[str]) -> list[str]:
    """Return a command that runs ``argv`` and dies with this process, where the system can do that."""
    if not sys.platform.startswith("linux"):
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *argv]


def launch(
    argv: Sequence[str], *, output: IO[bytes], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``argv`` in a session of its own, where no Ctrl-C reaches it; all it prints goes into ``output``."""
    return subprocess.Popen(
        tied_to_us(argv),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=dict(env) if env is not None else None,
        start_new_session=True,
    )
