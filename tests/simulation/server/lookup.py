"""Finds the command that words name, or what a server of this version says of an unknown one."""

from tests.simulation.server.commands import COMMANDS, CONTAINERS, Command
from tests.simulation.server.core import Core
from tests.simulation.server.replies import Reply, ReplyError


def find(core: Core, words: list[bytes]) -> Command:
    """Return the command of ``words``. Raises ReplyError for an unknown command or a wrong number of words."""
    name = words[0].upper()
    found = COMMANDS.get(name)
    if found is not None and not knows(core, found):
        raise ReplyError(_unknown(core, words))
    if found is None:
        found = _find_subcommand(core, name, words)
    if not found.takes(len(words)):
        raise ReplyError(f"ERR wrong number of arguments for '{found.name}' command")
    return found


def knows(core: Core, found: Command) -> bool:
    """Return whether the server's version has a command."""
    return not found.needs or bool(getattr(core.capabilities, found.needs))


def _find_subcommand(core: Core, name: bytes, words: list[bytes]) -> Command:
    container = CONTAINERS.get(name)
    if container is None:
        raise ReplyError(_unknown(core, words))
    if len(words) < 2:
        raise ReplyError(b"ERR wrong number of arguments for '%b' command" % name.lower())
    found = container.get(words[1].upper())
    if found is not None and (core.is_7 or found.takes(len(words))):
        return found
    unknown = unknown_subcommand(core, words)
    if core.is_7:
        raise unknown
    return _failing(name.decode().lower(), unknown)  # 6.2 checks subcommands when they run


def _unknown(core: Core, words: list[bytes]) -> bytes:
    if core.is_7:
        rest = b"".join(b"'%b' " % word for word in words[1:])
        return b"ERR unknown command '%b', with args beginning with: %b" % (words[0], rest)
    rest = b"".join(b"`%b`, " % word for word in words[1:])
    return b"ERR unknown command `%b`, with args beginning with: %b" % (words[0], rest)


def unknown_subcommand(core: Core, words: list[bytes]) -> ReplyError:
    """Return what a container says of a subcommand that it does not have."""
    name, sub = words[0].upper(), words[1]
    if core.is_7:
        return ReplyError(b"ERR unknown subcommand '%b'. Try %b HELP." % (sub, name))
    return ReplyError(b"ERR Unknown subcommand or wrong number of arguments for '%b'. Try %b HELP." % (sub, name))


def _failing(container: str, error: ReplyError) -> Command:
    def fail(_core: Core, _words: list[bytes]) -> Reply:
        raise error

    return Command(f"{container}|", -2, "read", fail, in_scripts=True)
