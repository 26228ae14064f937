"""The meaning of an error of Redis, decided here for all callers.

redis-py takes the code off the texts it has a class for. From inside a script, servers before 7.2 report missing rights
with plain ``ERR``, and 6.2 quotes the whole text. From 7.2 on they, and Valkey, have new words. If the text leaves open
whether the request or the server is at fault, the answer is `Meaning.UNCLEAR`. A caller that needs to know has to ask
the server another question.
"""

import re
from enum import Enum, auto

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

CONTACT_LOST = (RedisConnectionError, RedisTimeoutError, OSError)
"""Exceptions that say: no contact. Whether the command ran is unknown."""


class AllInUseError(RedisConnectionError):
    """All connections of a client are in use by ourselves. The call was not sent, and the state of Redis is unknown."""


class NoMasterError(RedisConnectionError):
    """Sentinels or cluster nodes were asked for the server that takes writes, and name none now."""


class NobodyYetError(NoMasterError):
    """The same, but some of them know the name. There is none now, and a failover may be under way."""


class NotSentError(RedisConnectionError):
    """There is no connection to the server that takes writes, or none could be made. The call was not sent."""


class Meaning(Enum):
    """The meaning of an error for the server and for us."""

    AWAY = auto()
    """Nobody answered, or a node that is not the one to write to now. It passes; a call's effect is unknown."""
    LOCKED_OUT = auto()
    """The same for us, since we are not let in: the password is wrong, or missing."""
    DENIED = auto()
    """Our user may not do that. Whatever is asked is not at fault; somebody has to give the right."""
    NO_GROUP = auto()
    """The consumer group, or its stream, is not there."""
    REFUSED = auto()
    """The server has another reason, and a code for it: no memory, a key of another type …"""
    UNCLEAR = auto()
    """A plain ``ERR``: the request itself is at fault, or the script it runs, or something that has no code."""


_NOT_SENT = (AllInUseError, NoMasterError, NotSentError)

# The answers of a node that is up but not (any more) the one for writes. Drop the connection and look again. ASK
# belongs here, too. While a slot moves, a call on several of its keys is served at neither end.
_FAILOVER_CLASSES = (ReadOnlyError, ClusterDownError, TryAgainError, MovedError, AskError)
_FAILOVER_TEXT = re.compile(r"^UNBLOCKED |(^|-)(READONLY|MASTERDOWN|LOADING|CLUSTERDOWN|TRYAGAIN|MOVED|ASK) ")
_CODES: dict[type[BaseException], str] = {
    ReadOnlyError: "READONLY",
    ClusterDownError: "CLUSTERDOWN",
    TryAgainError: "TRYAGAIN",
    MovedError: "MOVED",
    AskError: "ASK",
}
_LOCKED_OUT = re.compile(r"^-?(NOAUTH|WRONGPASS) ")
_NO_WRITES = re.compile(r"(^|-)(NOREPLICAS|MISCONF|BUSY) ")
_NO_MEMORY = re.compile(r"(^|-)OOM ")
_WHERE_IN_A_SCRIPT = re.compile(
    r"^Error running script \(call to f_\w+\): @user_script:\d+: (@user_script: ?\d+: )?-?"  # Redis 6.2
    r"| ?script:( [0-9a-f]+,)? on @user_script:\d+\.?$"
)
_DENIED = re.compile(r"(^|-)NOPERM |The user executing the script can't |ACL failure in script|[Nn]o permissions to ")
_CODED = re.compile(r"-?[A-Z]+ |.* -[A-Z]+ ")
_SAID_BY_THE_SERVER = re.compile(r"max number of clients reached")
_NOTHING_THERE = re.compile(r"^-?(WRONGTYPE |NOGROUP |(ERR )?no such key)")
_NO_COMMAND = re.compile(r"^(ERR )?unknown command|Unknown (Redis )?command called", re.IGNORECASE)
_MISSING_COMMAND = re.compile(r"unknown command ['`]([A-Za-z|]{1,32})['`]")
_NOT_KNOWN = re.compile(r"unknown (sub)?command|syntax error|unbalanced", re.IGNORECASE)


def meaning_of(error: BaseException) -> Meaning:
    """Return what ``error``, raised by redis-py or by the connection, means."""
    said = str(error)
    if isinstance(error, AuthenticationError | AuthorizationError):
        return Meaning.LOCKED_OUT
    if isinstance(error, CONTACT_LOST) or is_failover_error(error):
        return Meaning.AWAY
    if isinstance(error, NoPermissionError):
        return Meaning.DENIED
    return meaning_of_text(said, coded=type(error) is not ResponseError)


def meaning_of_text(said: str, *, coded: bool = False) -> Meaning:
    """Return the meaning of a reason that a server or script gave. ``coded``: it had a code that was cut off."""
    if _LOCKED_OUT.search(said):
        return Meaning.LOCKED_OUT
    if _FAILOVER_TEXT.search(said):
        return Meaning.AWAY
    if _DENIED.search(said):
        return Meaning.DENIED
    if "NOGROUP" in said:
        return Meaning.NO_GROUP
    return Meaning.REFUSED if coded or _CODED.match(said) else Meaning.UNCLEAR


def is_failover_error(error: BaseException) -> bool:
    """Tell whether the server answered that it is not the one to write to now."""
    if isinstance(error, _FAILOVER_CLASSES):
        return True
    return isinstance(error, ResponseError) and _FAILOVER_TEXT.search(str(error)) is not None


def was_not_run(error: BaseException) -> bool:
    """Return whether a failed script certainly had no effect. It was not sent, or was answered before it ran.

    A server that is a replica by now refuses the first write. Rights that a script misses are found in its midst.
    """
    if isinstance(error, _NOT_SENT) or is_failover_error(error):
        return True
    return meaning_of(error) in (Meaning.DENIED, Meaning.LOCKED_OUT) and "script" not in str(error)


def takes_no_more_clients(error: BaseException) -> bool:
    """Return whether the server serves connected clients, and accepts no new ones (``maxclients``)."""
    return _SAID_BY_THE_SERVER.search(str(error)) is not None


def is_nothing_there(error: object) -> bool:
    """Tell whether a server that was asked for a key of ours answered that there is none, or something foreign."""
    return isinstance(error, ResponseError) and _NOTHING_THERE.search(str(error)) is not None


def is_not_now(error: BaseException) -> bool:
    """Return whether the server itself says that it is up, but serves no clients, no new ones or no writes for now.

    The same if Sentinels or cluster nodes know the name, and there is none now. Then neither the address nor
    the login nor a right is to blame, and waiting may mend it.
    """
    said_so = (BusyLoadingError, OutOfMemoryError, NobodyYetError)
    if isinstance(error, said_so) or is_failover_error(error):
        return True
    said = str(error)
    return any(found.search(said) for found in (_NO_WRITES, _NO_MEMORY, _SAID_BY_THE_SERVER))


def is_wrong_type(error: object) -> bool:
    """Return whether the server met a key with foreign content. It does not say which."""
    return isinstance(error, ResponseError) and "WRONGTYPE" in str(error)


def in_words(error: object) -> str:
    """Return the words of an error, or of the reason of a script, with the place that names the key or command."""
    said = _WHERE_IN_A_SCRIPT.sub("", str(error)).rstrip(". ")
    if is_wrong_type(error):
        return f"{said} (`reaper doctor` names the key)"
    meaning = meaning_of(error) if isinstance(error, BaseException) else meaning_of_text(said)
    if meaning is Meaning.DENIED:
        return f"{said} (see `ACL LOG` of the server; `reaper acl` prints the permissions to grant)"
    if meaning is Meaning.UNCLEAR and _NO_COMMAND.search(said):
        missing = _MISSING_COMMAND.search(said)
        which = missing[1] if missing else "a command of a script"
        return f"the server does not know {which}: it was renamed or removed (`rename-command`), or a proxy rejects it"
    return said


def is_not_known(error: BaseException) -> bool:
    """Tell whether the server does not know the command that it was asked for, or its options."""
    return meaning_of(error) in (Meaning.UNCLEAR, Meaning.REFUSED) and _NOT_KNOWN.search(str(error)) is not None


def is_contact_error(error: BaseException) -> bool:
    """Tell whether ``error`` will pass once Redis can be reached again, and lets us in."""
    return meaning_of(error) in (Meaning.AWAY, Meaning.LOCKED_OUT)


def is_outage(error: BaseException) -> bool:
    """Return whether ``error`` means that Redis was out of reach. An `AllInUseError` means that we were busy."""
    return is_contact_error(error) and not isinstance(error, AllInUseError)


_PLAIN = (RedisConnectionError, RedisTimeoutError, NoMasterError, NobodyYetError, NotSentError)


def kind_of(error: BaseException) -> str:
    """Return the distinguishing part of ``error`` for people, or '' for each of the many ways to lose contact."""
    is_plain = type(error) in _PLAIN or isinstance(error, OSError)
    if is_plain and not takes_no_more_clients(error):
        return ""
    code = _FAILOVER_TEXT.search(str(error))
    if code or isinstance(error, _FAILOVER_CLASSES):  # each call is refused with another text
        return code[0].strip(" -") if code else _CODES.get(type(error), type(error).__name__)
    return re.sub(r"\d+", "#", f"{type(error).__name__}: {error}")
