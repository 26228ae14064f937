"""Starts child processes that cannot outlive the drill, even where it is itself killed with -9."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from anyio import CancelScope, move_on_after

from workers.testing.processes import tied_to_us


async def launch(argv: Sequence[str], *, folder: Path, env: Mapping[str, str], stdout: str, stderr: str) -> Process:
    """Start ``argv`` in ``folder``, its output appended to two files there.

    It gets a session of its own, so that a Ctrl-C reaches the drill alone.
    """
    with (folder / stdout).open("ab") as out, (folder / stderr).open("ab") as err:
        return await asyncio.create_subprocess_exec(
            *tied_to_us(argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            env=dict(env),
            start_new_session=True,
        )


def send_signal(process: Process, number: int) -> None:
    """Signal a process we started; harmless where it has ended."""
    with suppress(ProcessLookupError):
        process.send_signal(number)


async def end(process: Process, *, within_s: float = 0) -> None:
    """End a process for certain: SIGTERM, and SIGKILL to its whole session where it takes longer than ``within_s``.

    Whoever awaits this cannot be cancelled out of it, so it must be bounded: it is.
    """
    with CancelScope(shield=True):
        if within_s > 0 and process.returncode is None:
            send_signal(process, signal.SIGCONT)  # a paused process would not see the SIGTERM
            send_signal(process, signal.SIGTERM)
            with move_on_after(within_s):
                await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
