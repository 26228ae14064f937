"""Commands that cannot do what they are told: a sentence that names what is wrong, in JSON too, and the exit code 2."""

import errno
import io
import os
import sys
from collections.abc import Callable
from functools import partial

import pytest
from redis.asyncio import Redis

from tests.operator.conftest import Command, run_command
from tests.support.servers import RedisServer
from workers.protocol.keys import group_keys, namespace_keys
from workers.runtime.printing import show, show_json

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:1/0"
KEYS = group_keys("orders", "billing")
PAIR = ("--groups", KEYS.pair)
ACT = [
    ("dead-letters list", ()),
    ("dead-letters redrive", ("--all",)),
    ("dead-letters purge", ("--all", "--yes")),
    ("pause", ("billing",)),
    ("resume", ("billing",)),
    ("forget", ("billing", "--yes")),
]
EVERY = [
    *ACT,
    ("explain", ("order-17",)),
    ("dead-letters show", ("1-0",)),
    ("leader show", ()),
    ("leader step-down", ()),
    ("status", ()),
    ("doctor", ()),
]


@pytest.mark.parametrize(("command", "words"), EVERY, ids=[command for command, _ in EVERY])
async def test_an_address_where_nothing_is_is_json_for_who_wants_json(command: str, words: tuple[str, ...]) -> None:
    people = await run_command(NOWHERE, *command.split(), *words, *PAIR)
    machines = await run_command(NOWHERE, *command.split(), *words, *PAIR, "--json")
    assert (people.code, machines.code) == (2, 2)
    assert (people.out, machines.err) == ("", "")
    assert machines.data["status"] == "unreachable"
    assert people.err == f"error: {machines.data['error']}\n"


async def test_a_setting_that_cannot_be_is_json_for_who_wants_json() -> None:
    answer = await run_command(NOWHERE, "status", "--namespace", "a:b", "--json")
    assert (answer.code, answer.err) == (2, "")
    assert answer.data["status"] == "impossible"
    assert "namespace" in answer.data["error"]


@pytest.mark.parametrize(("command", "words"), ACT, ids=[command for command, _ in ACT])
async def test_a_key_that_holds_something_else_is_named(
    reaper: Command, client: Redis, command: str, words: tuple[str, ...]
) -> None:
    for key in (KEYS.stream, KEYS.dead, KEYS.agreement):
        await client.set(key, "somebody else's")
    answer = await reaper(*command.split(), *words, *PAIR)
    assert answer.code == 2
    assert "orders holds a string, where a stream belongs" in answer.err
    assert "{orders}:group:billing holds a string, where a hash belongs" in answer.err


async def test_keys_of_the_namespace_are_named_and_only_the_first_of_many(reaper: Command, client: Redis) -> None:
    of_namespace, other = namespace_keys("reaper"), group_keys("mail", "sender")
    for key in (of_namespace.replicas, KEYS.stream, KEYS.dead, other.stream, other.dead):
        await client.rpush(key, "somebody else's")
    answer = await reaper("pause", "billing", "--groups", f"{KEYS.pair},{other.pair}")
    assert "{reaper}:replicas holds a list, where a hash belongs; " in answer.err
    assert " (and 2 more): " in answer.err


async def test_the_doctor_names_them_as_well(reaper: Command, client: Redis) -> None:
    await client.set(KEYS.schedule, "somebody else's")
    found = (await reaper("doctor", *PAIR, "--json")).data["findings"]
    (keys,) = [one for one in found if one["check"] == "keys"]
    assert keys["level"] == "wrong"
    assert keys["text"].startswith("{orders}:scheduled:billing holds a string, where a sorted set belongs: ")


class FullDisk(io.StringIO):
    """What a redirected standard output is like once there is no space left."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("say", [partial(show, "line"), partial(show_json, {"a": 1})], ids=["people", "machines"])
def test_output_that_cannot_be_written_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], say: Callable[[], None]
) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    with pytest.raises(SystemExit) as ended:
        say()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: standard output cannot be written to: No space left on device.\n"
    sys.stdout.write("what comes after goes nowhere, and does not fail")
    sys.stdout.flush()


async def test_dead_letters_are_listed_by_the_name_that_pause_takes(reaper: Command, client: Redis) -> None:
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    for words in (("billing",), ("--group", "billing"), ("orders/billing",), ("billing", "--group", "billing")):
        assert (await reaper("dead-letters", "list", *words, *PAIR)).code == 0
    answer = await reaper("dead-letters", "list", "billing", "--group", "sender", *PAIR)
    assert (answer.code, "which group: 'billing', or 'sender'" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("login", "path", "advice"),
    [
        ("nobody:wrong@", "0", "It does not let us in: correct user name and password in redis_url."),
        ("", "99", "It has fewer databases: end redis_url with a lower number, or with none."),
        ("pinger:pass@", "0", "It lets us in, but not do our work: give its user the rights that `reaper acl` prints."),
    ],
    ids=["password", "database", "rights"],
)
async def test_a_server_that_is_there_and_of_no_use_is_told_from_one_that_is_not(
    client: Redis, server: RedisServer, login: str, path: str, advice: str
) -> None:
    await client.execute_command("ACL", "SETUSER", "pinger", "on", ">pass", "+ping", "+select")
    answer = await run_command(f"redis://{login}127.0.0.1:{server.port}/{path}", "status")
    assert answer.code == 2
    assert answer.err.rstrip().endswith(advice)
