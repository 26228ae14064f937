"""The table of commands: their names, number of words, and categories."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from tests.simulation.server.replies import Reply

if TYPE_CHECKING:
    from tests.simulation.server.core import Core

Handler: TypeAlias = "Callable[[Core, list[bytes]], Reply]"
Kind = Literal["read", "write", "grow", "control"]
"""``grow`` writes, and may need memory; ``control`` touches no keys."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, or one subcommand."""

    name: str
    """In lower case, a subcommand behind ``|``."""
    arity: int
    """Words, its name included; -n: at least n."""
    kind: Kind
    handler: Handler
    in_scripts: bool
    needs: str = ""
    """The capability without which a server does not know it."""

    @property
    def writes(self) -> bool:
        """Tell whether it changes data."""
        return self.kind in ("write", "grow")

    def takes(self, count: int) -> bool:
        """Tell whether it may have so many words."""
        return count == self.arity if self.arity > 0 else count >= -self.arity


COMMANDS: dict[bytes, Command] = {}
CONTAINERS: dict[bytes, dict[bytes, Command]] = {}


def command(
    name: str, arity: int, kind: Kind, *, in_scripts: bool = True, needs: str = ""
) -> Callable[[Handler], Handler]:
    """Register a handler. ``name`` is in upper case, a subcommand behind a blank."""

    def register(handler: Handler) -> Handler:
        made = Command(name.lower().replace(" ", "|"), arity, kind, handler, in_scripts, needs)
        container, _, sub = name.encode().partition(b" ")
        if sub:
            CONTAINERS.setdefault(container, {})[sub] = made
        else:
            COMMANDS[container] = made
        return handler

    return register
