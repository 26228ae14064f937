"""The written data of a server, so that a former moment can be restored, after a crash or on a lagging replica.

A copy of the data now and then, and the writes since. A script's writes are here one by one, in their order, so a
replay needs no Lua, and rejects no write.
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
    """The data at one moment, and the writes after it."""

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
        """Begin a new chapter if this one is long. Call it while no command runs."""
        if len(self._chapters[-1].writes) >= WRITES_BETWEEN_COPIES:
            self._chapters.append(_Chapter(keys.copy()))
            del self._chapters[:-KEPT_COPIES]

    def restart(self, keys: Keyspace) -> None:
        """Forget all, and begin with these data."""
        self._chapters = [_Chapter(keys.copy())]

    def data_before(self, now_us: int, lost_us: int) -> Keyspace:
        """Return the data without what was written in the last ``lost_us``, as far back as is known.

        If the clock was set back meanwhile, earlier writes are not lost.
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
