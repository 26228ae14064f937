"""Shows the progress of long work as one changing line on a terminal, or as a plain line now and then."""

import sys
import time
from collections.abc import Callable

from workers.protocol.messages import on_one_line

PLAIN_EVERY_S = 10.0
TERMINAL_EVERY_S = 0.2


class ProgressLine:
    """One line on standard error. Standard output belongs to results."""

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet, self._clock = quiet, clock
        self._terminal = sys.stderr.isatty()
        self._shown = ""
        self._due = clock()

    def show(self, text: str) -> None:
        """Show ``text``, if it is new and the last one was shown for long enough."""
        if self._quiet or text == self._shown or self._clock() < self._due:
            return
        self._due = self._clock() + (TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S)
        self._shown = text
        sys.stderr.write(f"\r\x1b[K{on_one_line(text)}" if self._terminal else f"{on_one_line(text)}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._terminal and self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
