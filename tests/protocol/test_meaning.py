"""The meaning of a server's error, by its text. One module decides it for all."""

import ast
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

import reaper
import workers
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client
from workers.protocol.meaning import (
    Meaning,
    NoMasterError,
    NoMasterYetError,
    NotSentError,
    in_words,
    is_contact_error,
    is_missing_key,
    is_not_known,
    is_not_now,
    meaning_of,
    was_not_run,
)

CODES = ("NOGROUP", "NOPERM", "WRONGTYPE", "NOAUTH", "WRONGPASS", "READONLY", "LOADING", "no permissions")
HERE = {"workers/protocol/meaning.py"}


NO, YES = False, True
AWAY, LOCKED_OUT, DENIED = Meaning.AWAY, Meaning.LOCKED_OUT, Meaning.DENIED
ERRORS: dict[tuple[Meaning, bool, bool], list[Exception]] = {
    (AWAY, NO, NO): [
        RedisConnectionError("Connection closed by server."),
        RedisConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."),
        RedisTimeoutError("no reply to EVALSHA within 5 s"),
        OSError("unreachable"),
    ],
    (AWAY, NO, YES): [NotSentError("Error 111 connecting to h:6379"), NoMasterError("the Sentinels name no master")],
    (AWAY, YES, NO): [RedisConnectionError("max number of clients reached")],
    (AWAY, YES, YES): [
        NoMasterYetError("the Sentinels name no master 'm' that is up: 'm' is down"),
        BusyLoadingError("Redis is loading the dataset in memory"),
        ResponseError("LOADING Redis is loading the dataset in memory"),
        ReadOnlyError("You can't write against a read only replica."),
        ResponseError("Error running script: @user_script: 13: -READONLY You can't write."),
        MasterDownError("Link with MASTER is down"),
        ClusterDownError("The cluster is down"),
        ResponseError("UNBLOCKED force unblock from blocking operation"),
    ],
    (LOCKED_OUT, NO, YES): [
        AuthenticationError("Authentication required."),
        ResponseError("WRONGPASS invalid username-password pair or user is disabled."),
    ],
    (DENIED, NO, YES): [NoPermissionError("this user has no permissions to run the 'xreadgroup' command")],
    (DENIED, NO, NO): [
        ResponseError("The user executing the script can't run this command or subcommand script: 5e, on @u:1."),
        ResponseError(
            "Error running script (call to f_5e): @user_script:1: @user_script: 1: The user executing the script can't "
            "access at least one of the keys mentioned in the command arguments"
        ),
        ResponseError("Error running script: @user_script: 3: -NOPERM this user has no permissions"),
    ],
    (Meaning.NO_GROUP, NO, NO): [ResponseError("NOGROUP No such key 'orders'")],
    (Meaning.OTHER_CODE, YES, NO): [
        ResponseError("Error running script (call to f_1): @user_script:1: -OOM command not allowed"),
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        ResponseError("NOREPLICAS Not enough good replicas to write. script: 08616641, on @user_script:1045."),
        ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        ResponseError("BUSY Redis is busy running a script."),
    ],
    (Meaning.OTHER_CODE, NO, NO): [
        ResponseError("WRONGTYPE Operation against a key"),
        ResponseError("BUSYGROUP Consumer Group name already exists"),
        ResponseError("DB index is out of range"),
    ],
    (Meaning.UNCLEAR, NO, NO): [
        ResponseError("user_script:1: too many results to unpack script: 9d, on @user_script:1."),
        ResponseError("wrong number of arguments for 'xack' command"),
        ValueError("LOADING"),
    ],
}
"""Errors by their meaning, by whether waiting may mend it, and by whether the call certainly had no effect."""
CASES = [(error, *key) for key, errors in ERRORS.items() for error in errors]


@pytest.mark.parametrize(("error", "meaning", "may_pass", "not_run"), CASES, ids=lambda value: str(value)[:40])
def test_what_an_error_means(error: Exception, meaning: Meaning, may_pass: bool, not_run: bool) -> None:
    assert (meaning_of(error), is_not_now(error), was_not_run(error)) == (meaning, may_pass, not_run)
    assert is_contact_error(error) is (meaning in (AWAY, LOCKED_OUT))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ResponseError("unknown command `XNACK`, with args beginning with: "), True),  # 6.2
        (ResponseError("Unknown subcommand or wrong number of arguments for 'DRYRUN'. Try ACL HELP."), True),
        (ResponseError("syntax error"), True),
        (ResponseError("Unbalanced 'xreadgroup' list of streams: for each stream key an ID, '+', …"), True),
        (ResponseError("wrong number of arguments for 'xnack' command"), False),
        (NoPermissionError("this user has no permissions to run the 'unknown command' command"), False),
        (ReadOnlyError("You can't write against a read only replica: syntax error"), False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_the_server_does_not_know(error: ResponseError, expected: bool) -> None:
    assert is_not_known(error) is expected


NO_REPLICAS = "NOREPLICAS Not enough good replicas to write"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("unknown command 'XINFO', with args beginning with: 'STREAM' 'secret' ", "unknown command 'XINFO'"),
        ("Unknown command called from script script: on @user_script:51.", "Unknown command called from script"),
        (
            "Error running script (call to f_1): @user_script:3: Unknown Redis command called from Lua script",
            "Unknown Redis command called from Lua script",
        ),
        ("syntax error", "syntax error"),
        (NO_REPLICAS + ".", NO_REPLICAS),
        (NO_REPLICAS + ". script: d9130c48412e2c2a, on @user_script:58.", NO_REPLICAS),  # Redis
        (NO_REPLICAS + ". script: on @user_script:58.", NO_REPLICAS),  # Valkey
        (f"Error running script (call to f_1): @user_script:5: @user_script: 5: -{NO_REPLICAS}.", NO_REPLICAS),  # 6.2
        ("NOGROUP No such key 'orders'", "NOGROUP No such key 'orders'"),
        (WRONG_TYPE, f"{WRONG_TYPE} (`reaper doctor` names the key)"),
    ],
)
def test_people_read_no_arguments_and_no_place_in_a_script_but_who_names_the_key(said: str, expected: str) -> None:
    assert in_words(ResponseError(said)) == expected


@pytest.mark.anyio
@pytest.mark.contract
async def test_what_is_not_there_or_is_something_foreign_is_told_from_what_is_denied(client: Redis) -> None:
    await client.set("text", "value")
    await client.xadd("stream", {"a": "b"})
    calls = [("XINFO", "STREAM", "absent"), ("XPENDING", "stream", "absent"), ("HGETALL", "text"), ("HGETALL",)]
    met = [await _error_of(client, *words) for words in calls]
    assert [is_missing_key(error) for error in met] == [True, True, True, False]
    assert meaning_of(met[1]) is Meaning.NO_GROUP
    assert not is_missing_key(b"WRONGTYPE is a value")
    in_scripts = [("XPENDING", "stream", "absent"), ("HGETALL", "text"), ("XADD", "stream", "0-0", "a", "b")]
    met = [await _error_of(client, "EVAL", "return redis.call(unpack(ARGV))", "0", *words) for words in in_scripts]
    assert [is_missing_key(error) for error in met] == [True, True, False]
    assert [meaning_of(error) for error in met] == [Meaning.NO_GROUP, Meaning.OTHER_CODE, Meaning.UNCLEAR]


@pytest.mark.anyio
@pytest.mark.contract
@pytest.mark.parametrize(
    ("right", "script", "not_run"),
    [
        ("-eval", "return 1", True),
        ("resetkeys", "return redis.call('SET', KEYS[1], 1)", True),
        ("-xack", "redis.call('SET', KEYS[1], 1) return redis.call('XACK', KEYS[1], 'g', '1-1')", False),
    ],
)
async def test_a_right_that_is_missed_in_the_midst_of_a_script_says_nothing_of_what_was_before(
    server: RedisServer, client: Redis, right: str, script: str, not_run: bool
) -> None:
    async with a_user(server, client, "~*", "+@all", right) as user:
        error = await _error_of(user, "EVAL", script, "1", "text")
    assert (meaning_of(error), was_not_run(error)) == (Meaning.DENIED, not_run)
    assert await client.exists("text") == (not not_run)


@pytest.mark.anyio
@pytest.mark.contract
async def test_missing_rights_are_seen_on_this_server_wherever_they_show(server: RedisServer, client: Redis) -> None:
    async with a_user(server, client, "-@all", "+eval", "+set", "+publish", "~a", "resetchannels") as user:
        for words in (
            ("EVAL", "return redis.pcall('GET', KEYS[1])", "1", "a"),
            ("GET", "a"),
            ("EVAL", "return 1", "1", "b"),
            ("EVAL", "return redis.call('SET', 'b', '1')", "1", "a"),
            ("EVAL", "return redis.call('PUBLISH', 'b', '1')", "1", "a"),
        ):
            assert meaning_of(await _error_of(user, *words)) is Meaning.DENIED, words
        assert meaning_of(await _error_of(user, "EVAL", "error('b')", "1", "a")) is Meaning.UNCLEAR


@asynccontextmanager
async def a_user(server: RedisServer, client: Redis, *rights: str) -> AsyncIterator[Redis]:
    """Connect as a user with these rights, which is gone with the block."""
    await client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", *rights)
    try:
        async with commands_client(server.url.replace("//", "//u:p@")) as user:
            yield user
    finally:
        await client.execute_command("ACL", "DELUSER", "u")


async def _error_of(client: Redis, *words: str) -> ResponseError:
    with pytest.raises(ResponseError) as raised:
        await client.execute_command(*words)
    return raised.value


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts that a module works with, its documentation left out."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def test_nobody_else_looks_for_the_codes_of_errors() -> None:
    roots = [Path(package.__path__[0]) for package in (reaper, workers)]
    found = {
        f"{root.name}/{path.relative_to(root)}"
        for root in roots
        for path in root.rglob("*.py")
        if any(code in text for text in _texts(path) for code in CODES)
    }
    assert found == HERE


@pytest.mark.parametrize(
    "said",
    [
        NoPermissionError("this user has no permissions to access one of the keys used as arguments"),
        ResponseError(
            "The user executing the script can't run this command or subcommand script: 5f, on @user_script:9."
        ),
        "ERR ACL failure in script: User worker has no permissions to run the 'xadd' command",
    ],
)
def test_an_error_of_permissions_names_the_commands_that_help(said: ResponseError | str) -> None:
    told = in_words(said)
    assert told.startswith(str(said).partition(" script: 5f")[0])
    assert told.endswith(" (see `ACL LOG` of the server; `reaper acl` prints the permissions to grant)")
