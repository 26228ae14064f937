"""What a server has written, so that it can be seen as it was a moment ago: after a crash, or on a replica that lags.

A copy of the data now and then, and the writes since. A script's writes stand here one by one, as they went through, so
what is replayed needs no Lua, and is refused nothing.
"""

from typing import NamedTuple

from tests.simulation.server.commands import COMMANDS, CONTAINERS
from tests.simulation.server.core import Core
from tests.simulation.server.keyspace import Keyspace
from tests.simulation.server.versions import Capabilities

WRITES_BETWEEN_COPIES = 4096
KEPT_COPIES = 3


class Write(NamedTuple):
    """One command that may have changed something, and when it ran."""

    at_us: int
    words: list[bytes]


class _Chapter:
    """The data at one moment, and what was written after it."""

    def __init__(self, keys: Keyspace) -> None:
        self.keys = keys
        self.writes: list[Write] = []


class History:
    """The recent past of a server's data."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._chapters = [_Chapter(Keyspace())]

    def note(self, at_us: int, words: list[bytes]) -> None:
        """Remember a write."""
        self._chapters[-1].writes.append(Write(at_us, words))

    def tidy(self, keys: Keyspace) -> None:
        """Begin a new chapter where this one is long; to be called where no command runs."""
        if len(self._chapters[-1].writes) >= WRITES_BETWEEN_COPIES:
            self._chapters.append(_Chapter(keys.copy()))
            del self._chapters[:-KEPT_COPIES]

    def restart(self, keys: Keyspace) -> None:
        """Forget all: these are the data now."""
        self._chapters = [_Chapter(keys.copy())]

    def data_before(self, now_us: int, lost_us: int) -> Keyspace:
        """Return the data without what was written in the last ``lost_us``, as far back as is known.

        Where the clock was set back meanwhile, what was written before that is not lost.
        """
        for chapter in reversed(self._chapters):
            kept = len(chapter.writes)
            while kept and now_us - lost_us < chapter.writes[kept - 1].at_us <= now_us:
                kept -= 1
            if kept or chapter is self._chapters[0]:
                return self._replayed(chapter, kept)
        raise AssertionError("there is always a chapter")

    def _replayed(self, chapter: _Chapter, count: int) -> Keyspace:
        core = Core(self._capabilities)
        core.keys = chapter.keys.copy()
        for write in chapter.writes[:count]:
            core.set_time(write.at_us)
            _run(core, write.words)
        return core.keys


def _run(core: Core, words: list[bytes]) -> None:
    name = words[0].upper()
    command = COMMANDS[name] if name in COMMANDS else CONTAINERS[name][words[1].upper()]
    command.handler(core, words)
    core.ready.clear()
    core.waiting = None
