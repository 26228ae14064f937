"""The meaning of a server's error, by its text. One module decides it for all."""

import ast
from collections.abc import Iterator
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
    is_missing_key,
    is_not_known,
    is_not_now,
    meaning_of,
    was_not_run,
)

CODES = ("NOGROUP", "NOPERM", "WRONGTYPE", "NOAUTH", "WRONGPASS", "READONLY", "LOADING", "no permissions")
HERE = {"workers/protocol/meaning.py"}
NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ResponseError("unknown command `XNACK`, with args beginning with: "), True),  # 6.2
        (ResponseError("unknown command 'XNACK', with args beginning with: "), True),
        (ResponseError("Unknown subcommand or wrong number of arguments for 'DRYRUN'. Try ACL HELP."), True),
        (ResponseError("syntax error"), True),
        (ResponseError("Unbalanced 'xreadgroup' list of streams: for each stream key an ID, '+', …"), True),
        (ResponseError("wrong number of arguments for 'xnack' command"), False),
        (ResponseError("NOGROUP No such key 'x' or consumer group 'g' in XREADGROUP with GROUP option"), False),
        (NoPermissionError("this user has no permissions to run the 'unknown command' command"), False),
        (ReadOnlyError("You can't write against a read only replica: syntax error"), False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_the_server_does_not_know(error: ResponseError, expected: bool) -> None:
    assert is_not_known(error) is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "unknown command 'XINFO', with args beginning with: 'STREAM' 'secret' ",
            "unknown command 'XINFO'",
        ),
        ("unknown command `TIME`, with args beginning with: ", "unknown command `TIME`"),
        (
            "Unknown command called from script script: on @user_script:51.",
            "Unknown command called from script",
        ),
        (
            "Error running script (call to f_1): @user_script:3: Unknown Redis command called from Lua script",
            "Unknown Redis command called from Lua script",
        ),
        ("syntax error", "syntax error"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_command_that_the_server_does_not_know_is_named_and_its_arguments_are_not(said: str, expected: str) -> None:
    words = in_words(ResponseError(said))
    assert words == expected


@pytest.mark.anyio
@pytest.mark.contract
async def test_what_is_not_there_or_is_something_foreign_is_told_from_what_is_refused(client: Redis) -> None:
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
    assert [meaning_of(error) for error in met] == [Meaning.NO_GROUP, Meaning.REFUSED, Meaning.UNCLEAR]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotSentError("Error 111 connecting to localhost:6379"), True),
        (RedisConnectionError("Connection closed by server."), False),
        (RedisTimeoutError("no reply to EVALSHA within 5 s"), False),
        (AuthenticationError("WRONGPASS invalid username-password pair or user is disabled."), True),
        (ResponseError("LOADING Redis is loading the dataset in memory"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("OOM command not allowed when used memory > 'maxmemory'."), False),
        (ResponseError("something else went wrong"), False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_has_certainly_not_run(error: Exception, expected: bool) -> None:
    assert was_not_run(error) is expected


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
    await client.execute_command("ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "+@all", right)
    try:
        async with commands_client(server.url.replace("//", "//u:p@")) as user:
            error = await _error_of(user, "EVAL", script, "1", "text")
    finally:
        await client.execute_command("ACL", "DELUSER", "u")
    assert (meaning_of(error), was_not_run(error)) == (Meaning.DENIED, not_run)
    assert await client.exists("text") == (not not_run)


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
def test_where_redis_keeps_to_itself_which_right_is_missing_people_are_told_who_names_it(
    said: ResponseError | str,
) -> None:
    told = in_words(said)
    assert told.startswith(str(said).partition(" script: 5f")[0])
    assert told.endswith(" (see `ACL LOG` of the server; `reaper acl` prints the permissions to grant)")


def test_where_redis_keeps_to_itself_which_key_it_means_people_are_told_who_names_it() -> None:
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    assert in_words(ResponseError(wrong)) == f"{wrong} (`reaper doctor` names the key)"
    assert in_words(ResponseError("NOGROUP No such key 'orders'")) == "NOGROUP No such key 'orders'"


@pytest.mark.parametrize(
    "said",
    [
        NO_REPLICAS,
        NO_REPLICAS + " script: d9130c48412e2c2a, on @user_script:58.",
        NO_REPLICAS + " script: on @user_script:58.",
        "Error running script (call to f_1): @user_script:5: @user_script: 5: -" + NO_REPLICAS,
    ],
    ids=["itself", "Redis", "Valkey", "Redis 6.2"],
)
def test_where_a_script_met_it_is_nothing_for_people(said: str) -> None:
    assert in_words(ResponseError(said)) == "NOREPLICAS Not enough good replicas to write"


@pytest.mark.parametrize(
    "error",
    [
        ResponseError("NOREPLICAS Not enough good replicas to write. script: 08616641, on @user_script:1045."),
        ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        ResponseError("BUSY Redis is busy running a script."),
        ResponseError("Error running script (call to f_1): @user_script:1: -OOM command not allowed"),
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        BusyLoadingError("Redis is loading the dataset in memory"),
        ClusterDownError("The cluster is down"),
        MasterDownError("Link with MASTER is down"),
        ReadOnlyError("You can't write against a read only replica."),
        RedisConnectionError("max number of clients reached"),
        NoMasterYetError("the Sentinels name no master 'm' that is up: 'm' is down"),
    ],
    ids=repr,
)
def test_what_a_server_says_of_itself_may_pass(error: Exception) -> None:
    assert is_not_now(error)


@pytest.mark.parametrize(
    "error",
    [
        RedisConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."),
        OSError("unreachable"),
        AuthenticationError("invalid username-password pair or user is disabled."),
        NoPermissionError("this user has no permissions to run the 'info' command"),
        ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        ResponseError("BUSYGROUP Consumer Group name already exists"),
        ResponseError("DB index is out of range"),
        NoMasterError("the Sentinels name no master"),
    ],
    ids=repr,
)
def test_what_an_address_a_login_a_right_or_a_name_may_be_to_blame_for_need_not_pass(error: Exception) -> None:
    assert not is_not_now(error)
