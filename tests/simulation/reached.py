"""Notes which situations a story reaches. `tests.simulation.situations` lists those that a run has to reach.

A situation is a moment and circumstances. One event happens while a condition holds. The code that sees a moment
announces it (`Reached.note`). The moments are ``fault <kind>``, ``event <name>``, ``error <code>``, ``sent <script>``,
``ran <script>``, ``failed <script>``, ``again <script>`` (the same process calls it once more for the same entry),
``lease taken``, ``lease kept``, ``lease offered``, ``killed``, and ``started``.
"""

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.server.replies import Raw, Reply, ReplyError
from workers.protocol.events import LifecycleEvent
from workers.protocol.scripts import Script

if TYPE_CHECKING:
    from tests.simulation.world import World


class Moment(NamedTuple):
    """Something that happens."""

    by: str = ""
    """The process whose command runs; '' = the world."""
    said: bytes = b""
    """The answer of the script, or the text of an error."""
    event: LifecycleEvent | None = None


While = Callable[["World", Moment], bool]


@dataclass(frozen=True, slots=True)
class Situation:
    """Something that happens while something else is true."""

    name: str
    moment: str
    circumstances: tuple[While, ...] = ()

    def is_reached(self, world: "World", moment: Moment) -> bool:
        """Tell whether all circumstances are true."""
        return all(is_so(world, moment) for is_so in self.circumstances)


@cache
def script_names() -> dict[bytes, str]:
    """Return the names of the shipped scripts, by digest and by text."""
    scripts = [
        Script(package, script.stem)
        for package in ("workers.protocol", "reaper")
        for script in (Path(str(files(package))) / "lua").glob("*.lua")
    ]
    names = {script.digest.encode(): script.name for script in scripts}
    return names | {script.source.encode(): script.name for script in scripts}


SETTLES = ("settle", "enqueue")
"""Scripts that a process calls again after a lost reply."""
_ENTRY_ID = re.compile(rb"\d+-\d+|job-\d+")
DIGEST = 40
_CALL = re.compile(rb"EVAL(?:SHA)?\r\n\$(\d+)\r\n")


def script_in(data: bytes, known: Container[bytes]) -> str:
    """Return the name of the script that a request calls first, or '' if the server knows none."""
    if (call := _CALL.search(data, 0, 100)) is None:
        return ""
    script = data[call.end() : call.end() + int(call[1])]
    return script_names().get(script, "") if len(script) > DIGEST or script in known else ""


class Reached:
    """The situations that one story has reached."""

    def __init__(self, world: "World", situations: Iterable[Situation]) -> None:
        self._world = world
        self._open: dict[str, list[Situation]] = {}
        for situation in situations:
            self._open.setdefault(situation.moment, []).append(situation)
        self._calls: set[tuple[str, bytes]] = set()
        """Which process has sent a call for which entry."""
        self.names: set[str] = set()

    def note(self, kind: str, moment: Moment) -> None:
        """Note that something happens."""
        wanted = self._open.get(kind)
        if not wanted:
            return
        met = [situation for situation in wanted if situation.is_reached(self._world, moment)]
        if met:
            self.names.update(situation.name for situation in met)
            self._open[kind] = [situation for situation in wanted if situation not in met]

    def executed(self, words: list[bytes], reply: Reply) -> None:
        """Note a command that the server has executed."""
        name = script_names().get(words[1]) if words[0] in (b"EVALSHA", b"EVAL") else None
        said = reply.wire if isinstance(reply, Raw) else b""
        if isinstance(reply, ReplyError):
            said = b"-" + reply.text
        moment = Moment(self._world.witness.caller, said)
        if said.startswith(b"-"):
            self._world.note(f"error {said[1:].split(None, 1)[0].decode()}", moment)
            if name:
                self._world.note(f"failed {name}", moment)
        elif name:
            self._world.note(f"ran {name}", moment)
            if name in SETTLES:
                self._note_calls(name, moment, words)

    def _note_calls(self, name: str, moment: Moment, words: list[bytes]) -> None:
        for word in set(words[3:]):
            if _ENTRY_ID.fullmatch(word):
                if (moment.by, word) in self._calls:
                    self._world.note(f"again {name}", moment)
                self._calls.add((moment.by, word))
