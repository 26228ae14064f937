"""Pages that the planner has read on its way to the end of a limited batch, kept for tasks on the same machine.

They lie in memory that is in no folder, and ends with the planner and those who read it. A task opens it through
``/proc``. Where it cannot (another machine or container, a planner that has ended, a system that is not Linux), it
reads from Redis, as it reads what was not kept.
"""

import os
import pickle
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

KEPT_BYTES = 64_000_000
"""How much of a batch is kept, but for the page that comes to it."""
_NAME = "redis-stream"
_SECRET_BYTES = 16


@dataclass(frozen=True)
class KeptPages:
    """Where the pages of a range lie, from its first one on. Spark pickles it."""

    path: str
    secret: bytes
    """What the memory begins with: numbers of processes and files come again."""
    start: int
    end: int

    def read(self) -> Iterator[list[Any]]:
        """Yield the pages; none where they cannot be had."""
        memory = self._open()
        if memory is None:
            return
        with memory:
            memory.seek(self.start)
            while memory.tell() < self.end:
                yield pickle.load(memory)  # noqa: S301 - the planner's own, as its secret says

    def _open(self) -> BinaryIO | None:
        with suppress(OSError):
            if Path(self.path).readlink().as_posix().startswith(f"/memfd:{_NAME} "):
                memory = os.fdopen(os.open(self.path, os.O_RDONLY), "rb")
                if memory.read(_SECRET_BYTES) == self.secret:
                    return memory
                memory.close()
        return None


class Keeper:
    """Keeps what the planner reads for one batch."""

    def __init__(self) -> None:
        self._most = KEPT_BYTES
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._memory: BinaryIO | None = None
        self.end = _SECRET_BYTES
        """Where the next page would begin."""

    def keep(self, page: list[Any]) -> bool:
        """Keep a page; return False where there is no room, from then on for good."""
        if self.end >= self._most:
            return False
        try:
            memory = self._memory or self._begin()
            pickler = pickle.Pickler(memory, pickle.HIGHEST_PROTOCOL)
            pickler.fast = True  # looks for nothing that stands twice: replies hold no such objects
            pickler.dump(page)
            memory.flush()
            self.end = memory.tell()
        except (OSError, AttributeError):  # no memory left, or none of this kind on this system
            self._most = 0
            return False
        return True

    def pages(self, start: int, end: int) -> KeptPages | None:
        """Return what tells a task where to find pages; None where there are none."""
        if self._memory is None or start >= end:
            return None
        return KeptPages(f"/proc/{os.getpid()}/fd/{self._memory.fileno()}", self._secret, start, end)

    def close(self) -> None:
        """Let go of the memory. A task that has opened it reads on."""
        if self._memory is not None:
            with suppress(OSError):
                self._memory.close()

    def _begin(self) -> BinaryIO:
        self._memory = os.fdopen(os.memfd_create(_NAME), "wb")
        self._memory.write(self._secret)
        return self._memory
