"""Starts workers, reapers and other programs as processes, collects what they print, and ends them for certain."""

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.nursery import Nursery
from tests.support.patience import PATIENCE_S
from tests.support.waiting import happens, wait_until
from workers.testing.processes import Child, launch

ROOT = Path(__file__).resolve().parents[2]
_SETTINGS = ("REAPER_", "REDIS_URL")


class Running(Child):
    """One child process of a test. Its stdout and stderr go to one file, in the order written."""

    def __init__(self, name: str, process: Any, printed_to: Path) -> None:
        super().__init__(process)
        self.name = name
        self._printed_to = printed_to

    @property
    def output(self) -> str:
        """Its output so far."""
        return self._printed_to.read_text(errors="replace")

    def interrupt(self) -> None:
        """Send what Ctrl-C sends (SIGINT)."""
        self.signal(signal.SIGINT)

    async def wait(self, patience: float = PATIENCE_S) -> int:
        """Wait for its end and return the exit code.

        Raises AssertionError after ``patience`` idle seconds. See `tests.support.waiting`.
        """
        if self.running:
            try:
                await happens(self.ended, f"{self.name} ends", patience, progress=self._printed)
            except AssertionError as error:
                raise AssertionError(f"{self.name} still runs; it printed:\n{self.output}") from error
        code = self.exit_code
        assert code is not None
        return code

    async def prints(self, pattern: str, patience: float = PATIENCE_S) -> "re.Match[str]":
        """Wait until it has printed something that the regular expression ``pattern`` finds."""

        def found() -> "re.Match[str] | None":
            match = re.search(pattern, self.output, re.MULTILINE)
            assert match or self.running, f"{self.name} ended without printing {pattern!r}:\n{self.output}"
            return match

        match = await wait_until(found, f"{self.name} prints {pattern!r}", patience, progress=self._printed)
        assert match
        return match

    def _printed(self) -> int:
        """Return how much it has printed."""
        return self._printed_to.stat().st_size


class Processes:
    """The child processes of one test. The fixture ``processes`` ends them all with it.

    Programs of ours come from the ``nursery``, where there is one.
    """

    def __init__(self, folder: Path, nursery: Nursery | None = None) -> None:
        self._folder = folder
        self._nursery = nursery
        self._started: list[Running] = []

    def worker(self, target: str, *flags: str, env: Mapping[str, str] | None = None, name: str = "worker") -> Running:
        """Start ``worker run TARGET FLAGS…``."""
        return self.python("-m", "workers", "run", target, *flags, env=env, name=name)

    def reaper(self, *flags: str, env: Mapping[str, str] | None = None, name: str = "reaper") -> Running:
        """Start ``reaper run FLAGS…``."""
        return self.python("-m", "reaper", "run", *flags, env=env, name=name)

    def python(self, *arguments: str, env: Mapping[str, str] | None = None, name: str = "python") -> Running:
        """Start this Python with ``arguments``. It can import modules of the project and of the tests."""
        return self.start(sys.executable, *arguments, env=env, name=name)

    def start(self, *argv: str, env: Mapping[str, str] | None = None, name: str = "") -> Running:
        """Start any program. ``env`` is added to an environment that holds no settings of ours."""
        name = f"{name or Path(argv[0]).name}-{len(self._started) + 1}"
        printed_to = self._folder / f"{name}.log"
        environment = _clean_environment() | dict(env or {})
        python, *words = argv
        with printed_to.open("wb") as output:
            process: Any
            if self._nursery and python == sys.executable and self._nursery.takes(words, env or {}):
                process = self._nursery.start(words, environment, output)
            else:
                process = launch(argv, output=output, cwd=ROOT, env=environment)
        running = Running(name, process, printed_to)
        self._started.append(running)
        return running

    def end(self) -> None:
        """Kill the running processes, and print all output, which pytest shows for a failed test."""
        for running in self._started:
            running.kill()
        for running in self._started:
            print(f"--- {running.name} (exit code {running.exit_code}) printed:\n{running.output}")  # noqa: T201


def _clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": path}
