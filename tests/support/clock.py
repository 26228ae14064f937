"""The adjustable clock of a test's Redis server, by a small preloaded library (``clock_shim.c``)."""

import atexit
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from workers.protocol.errors import StreamReaperError

SOURCE = Path(__file__).with_name("clock_shim.c")
_OFFSET = struct.Struct("=q")  # microseconds


class NoClockError(StreamReaperError):
    """A server's clock cannot be set here. The message says why."""


class ServerClock:
    """The wall clock of the servers that are started with `environment`. It goes on from where it is set to.

    If it ``stands``, it shows the time of `stand_at`, and no time passes between two commands by itself.
    """

    def __init__(self, folder: Path, *, stands: bool = False) -> None:
        """Keep the clock in ``folder``. Raises NoClockError where there is no C compiler, or it is no Linux."""
        self._stands = stands
        self._library, self._offset = _library(), folder / "clock_offset"
        self.step_to(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """The additional environment of a server's process."""
        named = {"LD_PRELOAD": str(self._library), "STREAM_REAPER_CLOCK_OFFSET": str(self._offset)}
        return {**named, "STREAM_REAPER_CLOCK_STANDS": "1"} if self._stands else named

    def step_to(self, ahead_s: float) -> None:
        """Set the clock to so many seconds ahead of ours. Negative values are behind.

        A server sees it at its next look. Valkey 9 keeps its time for a millisecond.
        """
        self._write(round(ahead_s * 1e6))

    def stand_at(self, now_us: int) -> None:
        """Set a clock that stands to a moment, in microseconds since the epoch, at once."""
        self._write(now_us)

    def _write(self, number: int) -> None:
        # in place, because the servers have mapped this file
        descriptor = os.open(self._offset, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, _OFFSET.pack(number))
        finally:
            os.close(descriptor)


def can_set_clocks() -> bool:
    """Return whether servers with an adjustable clock can start here. That needs Linux and a C compiler."""
    return _compiler() is not None


def _compiler() -> str | None:
    if not sys.platform.startswith("linux"):
        return None
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@cache
def _library() -> Path:
    """Build the library, once in a process."""
    compiler = _compiler()
    if compiler is None:
        raise NoClockError(
            "A server's clock can only be set on Linux with a C compiler (cc, gcc or clang) on the PATH."
        )
    folder = tempfile.mkdtemp(prefix="clock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder) / "clock_shim.so"
    words = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    if built.returncode:
        raise NoClockError(f"{compiler} does not build the library that sets a server's clock: {built.stderr[-1_000:]}")
    return library
