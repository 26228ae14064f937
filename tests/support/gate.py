"""A gate in front of the handlers of other processes: they wait at it, without polling, until the test opens it."""

import os
import select
from pathlib import Path

import anyio


class Gate:
    """The test's side: a pipe, which is open once there is something in it. Nobody ever takes that out again."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._pipe = os.open(path, os.O_RDWR)  # while somebody could write, those who wait see no end of file

    def open(self) -> None:
        """Let everybody pass from now on."""
        os.write(self._pipe, b".")

    def close(self) -> None:
        """Forget the pipe: nobody waits any more."""
        os.close(self._pipe)


def wait_at(gate: str) -> None:
    """Wait until the gate at this path is open; the thread is blocked meanwhile."""
    pipe = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    try:
        select.select([pipe], [], [])
    finally:
        os.close(pipe)


async def passed(gate: str) -> None:
    """Wait until the gate at this path is open; the event loop goes on meanwhile."""
    pipe = os.open(gate, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await anyio.wait_readable(pipe)
    finally:
        os.close(pipe)
