"""The meaning of an error of Redis, decided here for all callers.

redis-py takes the code off the texts it has a class for. From inside a script, servers before 7.2 report missing
permissions with plain ``ERR``, and 6.2 quotes the whole text. If the text leaves open whether the request or the server
is at fault, the answer is `Meaning.UNCLEAR`.
"""

import re
from enum import Enum, auto

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError


class AllInUseError(RedisConnectionError):
    """All connections of a client are in use by ourselves. The call was not sent, and the state of Redis is unknown."""


class NoMasterError(RedisConnectionError):
    """Sentinels or cluster nodes were asked for the server that takes writes, and name none now."""


class NoMasterYetError(NoMasterError):
    """The same, but some of them know the name. There is none now, and a failover may be under way."""


class NotSentError(RedisConnectionError):
    """There is no connection to the server that takes writes, or none could be made. The call was not sent."""


class Meaning(Enum):
    """The meaning of an error for the server and for us."""

    AWAY = auto()
    """No server answered, or one that does not take writes now. It passes. The effect of the call is unknown."""
    LOCKED_OUT = auto()
    """The server rejects the login, because the password is wrong or missing. It passes, too."""
    DENIED = auto()
    """The user lacks a permission, which an operator has to grant. The request is not at fault."""
    NO_GROUP = auto()
    """The consumer group, or its stream, is not there."""
    OTHER_CODE = auto()
    """The server gives another code, for example for missing memory or a key of another type."""
    UNCLEAR = auto()
    """A plain ``ERR``. The request, its script or a condition without a code can be the cause."""


_CODES: dict[type[BaseException], str] = {
    AuthenticationError: "NOAUTH",
    AuthorizationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    ClusterDownError: "CLUSTERDOWN",
    MovedError: "MOVED",
    AskError: "ASK",
    TryAgainError: "TRYAGAIN",
    ReadOnlyError: "READONLY",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
}
"""The codes that redis-py cuts off the texts of these classes."""
_CODE = re.compile(r"^-?([A-Z]{2,}) |user_script: ?\d+: -?([A-Z]{2,}) ")  # 6.2 has it behind the place in a script
_LOCKED_OUT = frozenset({"NOAUTH", "WRONGPASS"})
# The answers of a node that is up but not (any more) the one for writes. Drop the connection and look again. ASK
# belongs here, too. While a slot moves, a call on several of its keys is served at neither end.
_AWAY = frozenset({"UNBLOCKED", "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"})
_NOT_NOW = _AWAY | {"NOREPLICAS", "MISCONF", "BUSY", "OOM"}
_WHERE_IN_A_SCRIPT = re.compile(
    r"^Error running script \(call to f_\w+\): @user_script:\d+: (@user_script: ?\d+: )?-?"  # Redis 6.2
    r"| ?script:( [0-9a-f]+,)? on @user_script:\d+\.?$"
    r"|, with args beginning with:.*$"
)
_DENIED = re.compile(r"The user executing the script can't |ACL failure in script|[Nn]o permissions to ")
_NOT_KNOWN = re.compile(r"unknown (sub)?command|syntax error|unbalanced", re.IGNORECASE)


def _code_of(error: object) -> str:
    """Return the code of an error, or of the reason of a script; '' if it has none, or the plain ``ERR``."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, BaseException) and type(error) is not ResponseError:
        return type(error).__name__ if isinstance(error, ResponseError) else ""
    found = _CODE.search(str(error))
    code = found[1] or found[2] if found else ""
    return code if code != "ERR" else ""


def meaning_of(error: BaseException | str) -> Meaning:
    """Return the meaning of an error that redis-py or the connection raised, or of a reason that a script gave."""
    code = _code_of(error)
    if code in _LOCKED_OUT:
        return Meaning.LOCKED_OUT
    if code in _AWAY or isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError)):
        return Meaning.AWAY
    if code == "NOPERM" or _DENIED.search(str(error)):
        return Meaning.DENIED
    if code == "NOGROUP":
        return Meaning.NO_GROUP
    return Meaning.OTHER_CODE if code else Meaning.UNCLEAR


def is_failover_error(error: BaseException) -> bool:
    """Return whether the server answered that it does not take writes now."""
    return _code_of(error) in _AWAY


def was_not_run(error: BaseException) -> bool:
    """Return whether a failed script certainly had no effect. It was not sent, or was answered before it ran.

    A server that has become a replica rejects the first write. A missing permission can show later in the script.
    """
    if isinstance(error, AllInUseError | NoMasterError | NotSentError) or is_failover_error(error):
        return True
    return meaning_of(error) in (Meaning.DENIED, Meaning.LOCKED_OUT) and "script" not in str(error)


def takes_no_more_clients(error: BaseException) -> bool:
    """Return whether the server serves connected clients, and accepts no new ones (``maxclients``)."""
    return "max number of clients reached" in str(error)


def is_missing_key(error: object) -> bool:
    """Return whether the server answered that one of our keys is missing, or has foreign content."""
    is_missing = _code_of(error) in ("WRONGTYPE", "NOGROUP") or "no such key" in str(error)
    return isinstance(error, ResponseError) and is_missing


def is_not_now(error: BaseException) -> bool:
    """Return whether the server itself reports that it is up, but serves no clients, no new ones or no writes for now.

    The same if Sentinels or cluster nodes know the name, and there is none now. Then neither the address nor
    the login nor a permission is the cause, and it may pass.
    """
    return isinstance(error, NoMasterYetError) or _code_of(error) in _NOT_NOW or takes_no_more_clients(error)


def is_wrong_type(error: object) -> bool:
    """Return whether the server found a key with foreign content. The error does not name the key."""
    return isinstance(error, ResponseError) and _code_of(error) == "WRONGTYPE"


def in_words(error: BaseException | str) -> str:
    """Return the text of an error, or of a script's reason, with the command that names the key or the permission."""
    said = _WHERE_IN_A_SCRIPT.sub("", str(error)).rstrip(". ")
    if is_wrong_type(error):
        return f"{said} (`reaper doctor` names the key)"
    if meaning_of(error) is Meaning.DENIED:
        return f"{said} (see `ACL LOG` of the server; `reaper acl` prints the permissions to grant)"
    return said


def is_not_known(error: BaseException) -> bool:
    """Return whether the server does not know the command, or its options."""
    return meaning_of(error) in (Meaning.UNCLEAR, Meaning.OTHER_CODE) and _NOT_KNOWN.search(str(error)) is not None


def is_contact_error(error: BaseException) -> bool:
    """Return whether ``error`` passes once Redis can be reached and accepts the login."""
    return meaning_of(error) in (Meaning.AWAY, Meaning.LOCKED_OUT)


def is_outage(error: BaseException) -> bool:
    """Return whether ``error`` means that Redis was out of reach. An `AllInUseError` means that we were busy."""
    return is_contact_error(error) and not isinstance(error, AllInUseError)


def kind_of(error: BaseException) -> str:
    """Return the distinguishing part of ``error`` for people, or '' for each of the many ways to lose contact."""
    code = _code_of(error)
    if code in _AWAY:  # each call is rejected with another text
        return code
    if meaning_of(error) is Meaning.AWAY and not isinstance(error, AllInUseError) and not takes_no_more_clients(error):
        return ""
    return re.sub(r"\d+", "#", f"{type(error).__name__}: {error}")
