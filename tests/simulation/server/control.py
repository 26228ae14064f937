"""Commands on the server itself, and on connections, which touch no keys."""

from typing import TYPE_CHECKING, cast

from tests.simulation.server.commands import command
from tests.simulation.server.core import Core
from tests.simulation.server.lookup import unknown_subcommand
from tests.simulation.server.replies import NO_REPLY, OK, Reply, ReplyError, Status, syntax_error
from tests.simulation.server.words import integer

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


@command("HELLO", -1, "control", in_scripts=False)
def hello(core: Core, words: list[bytes]) -> Reply:
    """HELLO [2 [AUTH user password] [SETNAME name]]"""
    if len(words) > 1 and words[1] != b"2":
        raise ReplyError("NOPROTO unsupported protocol version")
    at = 2
    while at < len(words):
        option = words[at].upper()
        if option == b"AUTH" and at + 2 < len(words):
            _server(core).log_in(_session(core), words[at + 1].decode(), words[at + 2])
            at += 3
        elif option == b"SETNAME" and at + 1 < len(words):
            _session(core).name = words[at + 1]
            at += 2
        else:
            raise ReplyError(b"ERR Syntax error in HELLO option '%b'" % words[at])
    _server(core).must_be_known(_session(core))
    return [
        b"server", b"redis", b"version", core.capabilities.full.encode(), b"proto", 2, b"id", _session(core).id,
        b"mode", b"standalone", b"role", b"replica" if _server(core).is_replica else b"master", b"modules", [],
    ]  # fmt: skip


@command("AUTH", -2, "control", in_scripts=False)
def auth(core: Core, words: list[bytes]) -> Reply:
    """AUTH [user] password"""
    if len(words) > 3:
        raise syntax_error()
    user = words[1].decode() if len(words) == 3 else "default"
    _server(core).log_in(_session(core), user, words[-1])
    return OK


@command("SELECT", 2, "control")
def select(core: Core, words: list[bytes]) -> Reply:
    """SELECT 0"""
    del core
    if integer(words[1]) != 0:
        raise ReplyError("ERR DB index is out of range")
    return OK


@command("CONFIG GET", -3, "control", in_scripts=False)
def config_get(core: Core, words: list[bytes]) -> Reply:
    """CONFIG GET name|*"""
    settings = _server(core).settings
    asked = [word.lower().decode() for word in words[2:]]
    return [
        part.encode() for name, value in settings.items() if "*" in asked or name in asked for part in (name, value)
    ]


@command("CLIENT SETNAME", 3, "control", in_scripts=False)
def client_setname(core: Core, words: list[bytes]) -> Reply:
    """CLIENT SETNAME name"""
    _session(core).name = words[2]
    return OK


@command("CLIENT SETINFO", 4, "control", in_scripts=False)
def client_setinfo(core: Core, words: list[bytes]) -> Reply:
    """CLIENT SETINFO LIB-NAME|LIB-VER value"""
    if not core.capabilities.is_7_2:
        raise unknown_subcommand(core, words)
    return OK


@command("CLIENT LIST", -2, "control", in_scripts=False)
def client_list(core: Core, words: list[bytes]) -> Reply:
    """CLIENT LIST"""
    del words
    return b"".join(
        b"id=%d name=%b user=%b cmd=%b\n" % (session.id, session.name, session.user.encode(), session.last_command)
        for session in _server(core).sessions.values()
    )


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


@command("ACL WHOAMI", 2, "control", in_scripts=False)
def acl_whoami(core: Core, words: list[bytes]) -> Reply:
    """ACL WHOAMI"""
    del words
    return _session(core).user.encode()


@command("SCRIPT LOAD", 3, "control", in_scripts=False)
def script_load(core: Core, words: list[bytes]) -> Reply:
    """SCRIPT LOAD source"""
    return _server(core).load_script(words[2])


@command("SCRIPT EXISTS", -3, "control", in_scripts=False)
def script_exists(core: Core, words: list[bytes]) -> Reply:
    """SCRIPT EXISTS digest …"""
    return [int(digest.lower() in _server(core).scripts) for digest in words[2:]]


@command("SCRIPT FLUSH", -2, "control", in_scripts=False)
def script_flush(core: Core, words: list[bytes]) -> Reply:
    """SCRIPT FLUSH [ASYNC|SYNC]"""
    del words
    _server(core).script_flush()
    return OK


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
