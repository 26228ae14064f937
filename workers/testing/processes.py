"""Starts child processes for tests and the drill. They end with their parent, even after its kill -9.

On Linux a child asks the kernel to kill it when its parent dies (``PR_SET_PDEATHSIG``). It asks through a trampoline
that then becomes the program, with the same process ID. A ``preexec_fn`` would run Python between fork and exec. To the
kernel the parent is the *thread* that started the child, so start it from one that lives long enough.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import anyio

_POLL_S = 0.01
_TRAMPOLINE = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
parent = int(sys.argv[1])
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != parent:
    os._exit(1)  # the parent died before we asked
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(error.strerror)
"""


class Child:
    """A started process, which leads a process group of its own.

    Only `kill` reaps it. Until then its process ID is not used again.
    """

    def __init__(self, process: Any) -> None:
        """``process`` is a `subprocess.Popen`, or has the same ``pid``, ``poll`` and ``wait``."""
        self._process = process
        self._is_reaped = False

    @property
    def pid(self) -> int:
        """Process ID, and ID of its process group."""
        return int(self._process.pid)

    @property
    def running(self) -> bool:
        """Whether it is alive (a paused one is)."""
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, -n if signal n ended it, None while it runs."""
        if self._is_reaped or not hasattr(os, "waitid"):  # a system that cannot look without reaping
            code: int | None = self._process.poll()
            return code
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    async def ended(self) -> int:
        """Wait for its end, and return the exit code."""
        while (code := self.exit_code) is None:  # noqa: ASYNC110 - it can only be asked
            await anyio.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """Kill -9, with everything it started. Returns after it has ended. Later calls have no effect."""
        if not self._is_reaped:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._is_reaped = True

    def pause(self) -> None:
        """Freeze it (SIGSTOP). Its connections stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it after `pause`. Otherwise without effect."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone. Without effect after its end."""
        if self.running:
            os.kill(self.pid, number)


def launch(
    argv: Sequence[str],
    *,
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``argv`` in a session of its own, which a Ctrl-C does not reach.

    ``output`` gets its output. ``errors`` gets its stderr, or ``output`` gets that too.
    """
    if sys.platform.startswith("linux"):
        argv = [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *argv]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=errors or subprocess.STDOUT, cwd=cwd,
        env=dict(env) if env is not None else None, start_new_session=True,
    )  # fmt: skip
