"""Starts this Python's programs from a process that has their modules loaded already, each as a process of its own.

Half of the suite's CPU time was the same half second again and again, a new interpreter that imports redis, pydantic,
anyio, OpenTelemetry and the product. A nursery reads them once and forks. Programs of tests read their own modules and
the reaper's, because some replace parts of it before its commands are imported.

A program is a child of the tests' process, not of the nursery. It is forked twice, and the tests' process adopts
orphans (``PR_SET_CHILD_SUBREAPER``). Programs that need a different start begin in the usual way. See `Nursery.takes`.
"""

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tests.support.patience import PATIENCE_S, scaled

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
OURS = ("reaper", "workers", "tests")
READ_BEFORE_MAIN = ("PYTHON", "LD_", "MALLOC_", "OTEL_PROPAGATORS", "OTEL_PYTHON_CONTEXT")
"""Variables that count when an interpreter begins, or a library is read."""
LONGEST_REQUEST = 1_000_000


class Forked:
    """A process of a nursery, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, -n where signal n ended it, None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Return the exit code at the end."""
        code = self._reap(0)
        assert code is not None
        return code

    def _reap(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


class Nursery:
    """One process that forks programs, from its first use to `close`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def takes(self, words: Sequence[str], additions: Iterable[str]) -> bool:
        """Tell whether ``python WORDS…`` finds here what it would find in an interpreter of its own.

        ``additions`` names the variables that it has besides ours.
        """
        return (
            sys.platform.startswith("linux")
            and len(words) > 1
            and words[0] == "-m"
            and words[1].partition(".")[0] in OURS
            and not any(name.startswith(READ_BEFORE_MAIN) for name in additions)
        )

    def start(self, words: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Forked:
        """Start ``python WORDS…`` in its own session. It dies with this process."""
        line = self._line or self._open(environment)
        request = json.dumps({"words": words, "environment": dict(environment)}).encode()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(line, [request], [output.fileno()])
            answer = line.recv(100)
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)  # adopt no other orphans, because they would not be reaped here
        if not answer:
            raise RuntimeError("the nursery has ended")
        return Forked(int(answer))

    def close(self) -> None:
        """End the nursery. Its programs go on."""
        if self._line is not None and self._process is not None:
            self._line.close()
            self._process.wait(scaled(PATIENCE_S))
            self._line = None

    def _open(self, environment: Mapping[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                words, cwd=self._root, env=dict(environment), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._line = ours
        return ours


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def _serve(line: socket.socket, adoptive: int) -> list[str] | None:
    """Fork for each request. Returns in each child, with its words. In the nursery, returns None at the end."""
    while True:
        request, files, _, _ = socket.recv_fds(line, LONGEST_REQUEST, 1)
        if not request:
            return None
        (told, tell), (gate, open_gate) = os.pipe(), os.pipe()
        middle = os.fork()
        if not middle:
            if os.fork():
                os._exit(0)
            os.setsid()  # before the tests' process knows it, because that may kill its group at once
            os.write(tell, str(os.getpid()).encode())
            for descriptor in (told, tell, open_gate, line.detach()):
                os.close(descriptor)
            os.read(gate, 1)
            os.close(gate)
            return _become(json.loads(request), files[0], adoptive)
        os.waitpid(middle, 0)  # from now on the child is theirs, and may begin
        os.write(open_gate, b"!")
        line.send(os.read(told, 100))
        files += [told, tell, gate, open_gate]
        for file in files:
            os.close(file)


def _become(request: dict[str, object], output: int, adoptive: int) -> list[str]:
    """Turn this child into the process that was asked for."""
    words, environment = request["words"], request["environment"]
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != adoptive:
        os._exit(1)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    failpoints = sys.modules["reaper.failpoints"]
    failpoints._DIRECTORY = os.environ.get(failpoints.ENVIRONMENT_VARIABLE)  # type: ignore[attr-defined]  # read once
    if str(words[1]).startswith("tests."):
        _forget("reaper")
    return words


def _load_modules() -> None:
    """Read what our programs read."""

    import reaper.cli.main
    import reaper.process
    import reaper.web.app  # noqa: F401
    import workers.cli
    import workers.program
    import workers.telemetry.sdk  # noqa: F401

    _forget("tests")
    gc.freeze()


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _main() -> None:
    descriptor, adoptive = int(sys.argv[1]), int(sys.argv[2])
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _load_modules()
    line = socket.socket(fileno=descriptor)
    words = _serve(line, adoptive)
    if words is None:
        return
    sys.argv[:] = words[1:]  # `run_module` puts the file's name first
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        _main()
