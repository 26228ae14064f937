"""Commands on the server itself, and on connections, which touch no keys."""

from typing import TYPE_CHECKING, cast

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.lookup import unknown_subcommand
from tests.simulation.server.replies import NO_REPLY, OK, Reply, ReplyError, Status

if TYPE_CHECKING:
    from tests.simulation.server.server import ModelServer
    from tests.simulation.server.sessions import Session


def _server(core: Core) -> "ModelServer":
    return cast("ModelServer", core)


def _session(core: Core) -> "Session":
    return cast("Session", core.session)


@command("PING", -1, "control")
def ping(core: Core, words: list[bytes]) -> Reply:
    """PING [message]"""
    if _session(core).channels:
        return [b"pong", words[1] if len(words) > 1 else b""]
    return words[1] if len(words) > 1 else Status(b"PONG")


@command("TIME", 1, "control")
def time(core: Core, words: list[bytes]) -> Reply:
    """TIME"""
    del words
    seconds, micros = divmod(core.now_us, 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


@command("INFO", -1, "control")
def info(core: Core, words: list[bytes]) -> Reply:
    """INFO [section …]"""
    asked = {word.lower().decode() for word in words[1:]}
    told = _server(core).info()
    is_all = not asked or asked & {"all", "default", "everything"}
    sections = (
        f"# {name.capitalize()}\r\n" + "".join(f"{field}:{value}\r\n" for field, value in values.items())
        for name, values in told.items()
        if is_all or name in asked
    )
    return "\r\n".join(sections).encode()


@command("CLIENT SETINFO", 4, "control", in_scripts=False)
def client_setinfo(core: Core, words: list[bytes]) -> Reply:
    """CLIENT SETINFO LIB-NAME|LIB-VER value"""
    if not core.capabilities.is_7_2:
        raise unknown_subcommand(core, words)
    return OK


@command("PUBLISH", 3, "control")
def publish(core: Core, words: list[bytes]) -> Reply:
    """PUBLISH channel message"""
    return core.publish(words[1], words[2])


@command("SUBSCRIBE", -2, "control", in_scripts=False)
def subscribe(core: Core, words: list[bytes]) -> Reply:
    """SUBSCRIBE channel …: each is answered by a push of its own."""
    for channel in words[1:]:
        _server(core).channels.subscribe(_session(core), channel)
    return NO_REPLY


@command("UNSUBSCRIBE", -1, "control", in_scripts=False)
def unsubscribe(core: Core, words: list[bytes]) -> Reply:
    """UNSUBSCRIBE [channel …]"""
    _server(core).channels.unsubscribe(_session(core), words[1:])
    return NO_REPLY


@command("EVAL", -3, "control", in_scripts=False)
def eval_(core: Core, words: list[bytes]) -> Reply:
    """EVAL source numkeys key … arg …"""
    return _server(core).evaluate(_server(core).load_script(words[1]), words)


@command("EVALSHA", -3, "control", in_scripts=False)
def evalsha(core: Core, words: list[bytes]) -> Reply:
    """EVALSHA digest numkeys key … arg …"""
    return _server(core).evaluate(words[1].lower(), words)


@command("MULTI", 1, "control", in_scripts=False)
def multi(core: Core, words: list[bytes]) -> Reply:
    """MULTI"""
    del words
    _session(core).begin()
    return OK


@command("DISCARD", 1, "control", in_scripts=False)
def discard(core: Core, words: list[bytes]) -> Reply:
    """DISCARD"""
    del core, words
    raise ReplyError("ERR DISCARD without MULTI")


@command("EXEC", 1, "control", in_scripts=False)
def exec_(core: Core, words: list[bytes]) -> Reply:
    """EXEC"""
    del core, words
    raise ReplyError("ERR EXEC without MULTI")
