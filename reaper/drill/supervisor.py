"""Starts processes, restarts those that end (like ``Restart=always`` of systemd), and keeps a record of each."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from reaper.drill.meters import cpu_s
from reaper.drill.records import ProcessRun, Role
from workers.protocol.errors import StreamReaperError
from workers.testing.processes import Child, launch

RESTART_DELAY_S = 1.0
"""As in the units of the documentation."""
STOP_TIMEOUT_S = 15.0
LOG_TAIL = 2_000

_FALSE_STARTS, _FALSE_START_S = 3, 5.0  # this many ends in a row, this soon after the start, are no accident


class ProcessFailedError(StreamReaperError):
    """A process ends again and again. The message ends with its last output."""


Command = tuple[Sequence[str], Mapping[str, str]]
"""The command line and the environment of a process."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one process at a time. ``command`` gets the name of the process (``w1-2`` is the second of w1)."""

    name: str
    role: Role
    command: Callable[[str], Command]


@dataclass(slots=True)
class _Running:
    run: ProcessRun
    process: Child
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Set once the end is in ``run``."""


@dataclass(slots=True)
class Supervisor:
    """Keeps one process running in each slot. Its output is in ``<name>.out`` and ``<name>.log`` of ``folder``."""

    folder: Path
    on_end: Callable[[ProcessRun], None] = lambda _: None
    """Called with each process that ended."""
    restart_delay_s: float = RESTART_DELAY_S
    history: list[ProcessRun] = field(default_factory=list)
    """Every process that was started, in order."""
    _running: dict[str, _Running] = field(default_factory=dict)
    _stopping: set[Role] = field(default_factory=set)
    _held_back: dict[Role, anyio.Event] = field(default_factory=dict)
    _forgives_until: float = 0.0

    async def run(self, slots: Sequence[Slot], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start one process for each slot and keep it running. Return when `stop` has ended all.

        Raises ProcessFailedError for one that fails again and again. Leaves no process behind, however it ends.
        """
        try:
            async with anyio.create_task_group() as group:
                for slot in slots:
                    group.start_soon(self._keep_running, slot)
                task_status.started()
        finally:
            self._end_all()

    async def _keep_running(self, slot: Slot) -> None:
        false_starts = number = 0
        while slot.role not in self._stopping:
            number += 1
            run = await self._run_once(slot, f"{slot.name}-{number}")
            failed_early = (run.exit_code or 0) > 0 and time.time() - run.started_at < _FALSE_START_S
            false_starts = false_starts + 1 if failed_early and time.monotonic() >= self._forgives_until else 0
            if false_starts == _FALSE_STARTS:
                raise ProcessFailedError(
                    f"{slot.role} {run.name} ended {false_starts} times right after its start, with exit code "
                    f"{run.exit_code}. It printed:",
                    *self.printed(run),
                )
            if slot.role not in self._stopping:
                await anyio.sleep(self.restart_delay_s)
            if slot.role in self._held_back:
                await self._held_back[slot.role].wait()

    async def _run_once(self, slot: Slot, name: str) -> ProcessRun:
        argv, env = slot.command(name)
        with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.log").open("ab") as log:
            process = Child(launch(argv, output=out, errors=log, cwd=self.folder, env=env))
        run = ProcessRun(name, slot.role, process.pid, time.time())
        self.history.append(run)
        running = self._running[name] = _Running(run, process)
        if slot.role in self._stopping:  # `stop` was called while it was being started
            self._tell_to_stop(running)
        run.exit_code = await process.ended()
        run.ended_at, run.cpu_s = time.time(), cpu_s(run.pid)
        del self._running[name]
        process.kill()  # its children end with it, and its CPU time is forgotten
        running.ended.set()
        self.on_end(run)
        return run

    def printed(self, *runs: ProcessRun) -> list[str]:
        """Return the last lines that these processes printed to stderr, under their names."""
        lines: list[str] = []
        for run in runs:
            text = (self.folder / f"{run.name}.log").read_text(errors="replace")[-LOG_TAIL:].strip()
            lines += [f"--- {run.name}", *text.splitlines()] if text else []
        return lines

    def alive(self, *roles: Role) -> list[ProcessRun]:
        """Return the processes of ``roles`` that run now, by name."""
        return sorted(
            (running.run for running in self._running.values() if running.run.role in roles),
            key=lambda run: run.name,
        )

    def forgive(self, seconds: float) -> None:
        """Do not count failed starts for ``seconds``, because Redis is away."""
        self._forgives_until = max(self._forgives_until, time.monotonic() + seconds)

    def hold_back(self, role: Role) -> None:
        """Start no process of ``role`` again, until `let_start`."""
        self._held_back.setdefault(role, anyio.Event())

    def let_start(self, role: Role) -> None:
        """Start processes of ``role`` again. Harmless if none were held back."""
        if role in self._held_back:
            self._held_back.pop(role).set()

    def measure(self) -> list[ProcessRun]:
        """Record the CPU time of the running processes. Return all processes that were started."""
        for running in self._running.values():
            running.run.cpu_s = cpu_s(running.run.pid)
        return self.history

    def kill(self, run: ProcessRun) -> bool:
        """Kill a process (SIGKILL). Return False if it has ended by itself meanwhile."""
        if run.name not in self._running:
            return False
        run.killed_at = time.time()
        self._running[run.name].process.signal(signal.SIGKILL)
        return True

    def is_paused(self, run: ProcessRun) -> bool:
        """Tell whether a process is stopped. Always True on systems without ``/proc``."""
        try:
            state = Path(f"/proc/{run.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return True
        return state in (b"T", b"t")

    def pause(self, run: ProcessRun) -> None:
        """Stop a process (SIGSTOP). Harmless if it has ended."""
        if run.name in self._running:
            self._running[run.name].process.pause()

    def resume(self, run: ProcessRun) -> None:
        """Let a stopped process continue (SIGCONT). Harmless otherwise."""
        if run.name in self._running:
            self._running[run.name].process.resume()

    async def stop(self, *roles: Role, within_s: float = STOP_TIMEOUT_S) -> None:
        """Stop all processes of ``roles`` (SIGTERM), and restart none. Kill those that do not end in time."""
        self._stopping |= set(roles)
        for role in roles:
            self.let_start(role)
        told = [running for running in self._running.values() if running.run.role in roles]
        for running in told:
            self._tell_to_stop(running)
        with anyio.move_on_after(within_s):
            for running in told:
                await running.ended.wait()
        for running in told:
            running.process.kill()
            await running.ended.wait()

    def _tell_to_stop(self, running: _Running) -> None:
        running.run.stopped = True
        running.process.terminate()

    def _end_all(self) -> None:
        for running in list(self._running.values()):
            running.process.kill()
            running.run.exit_code, running.run.ended_at = running.process.exit_code, time.time()
        self._running.clear()
