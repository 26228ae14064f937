"""Commands that cannot do what they are told: a sentence that names what is wrong, in JSON too, and the exit code 2."""

import os
import re
import sys
from pathlib import Path

import pytest
from anyio import run_process
from redis.asyncio import Redis

from tests.operator.conftest import Command, run_command
from tests.operator.every import ASKING, KEYS, LEAVES, OTHERS, PAIR, STARTING, typed
from tests.support.dump import dump
from tests.support.processes import ROOT, Processes
from tests.support.servers import RedisServer
from workers.protocol.address import shown_address
from workers.protocol.keys import TYPES, namespace_keys

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:1/0"
PACKAGES = {"reaper": "reaper", "worker": "workers"}
NAMESPACE = namespace_keys("reaper")
ACT = [name for name in ASKING if name.split()[1] in ("groups", "dead-letters") and not name.endswith("create")]


def test_no_command_escapes_these_tests() -> None:
    assert {name for name, _ in LEAVES} == ASKING.keys() | STARTING.keys() | OTHERS.keys()


@pytest.mark.parametrize("name", ASKING)
async def test_a_server_of_no_use_is_one_sentence_in_json_too(server: RedisServer, name: str) -> None:
    """Nothing there; a wrong password; a database that is not there."""
    for url in (NOWHERE, f"redis://nobody:wrong@127.0.0.1:{server.port}/0", f"redis://127.0.0.1:{server.port}/99"):
        machines = await run_command(url, *typed(name), "-o", "json")
        assert (machines.code, machines.err) == (3, "")
        assert machines.data["status"] == "unreachable"
        people = await run_command(url, *typed(name))
        assert (people.code, people.out) == (3, "")
        assert people.err == f"error: {machines.data['error']}\n"
        assert people.err.count("\n") == 1


ADDRESSES = ("x", "redis://127.0.0.1/zero", "redis://127.0.0.1:99999", "redis+sentinel://h:1", "redis+cluster://h/3",
             "redis://[::1")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "url"), [("reaper status", url) for url in ADDRESSES] + [(name, "x") for name in ASKING]
)
async def test_an_address_that_none_can_be_is_one_sentence(name: str, url: str) -> None:
    machines = await run_command(url, *typed(name), "-o", "json")
    assert (machines.code, machines.err) == (2, "")
    assert machines.data["status"] == "invalid"
    assert f"redis_url {shown_address(url)!r} cannot be used: " in machines.data["error"]


@pytest.mark.parametrize("name", STARTING)
async def test_what_goes_on_for_long_says_so_as_well(processes: Processes, name: str, tmp_path: Path) -> None:
    words = typed(name)
    if "--lake" in words:
        words += ["--lake", str(tmp_path / "lake")]  # the last one counts
    running = processes.python("-m", PACKAGES[name.split()[0]], *words, "--redis-url", "redis://:secret@127.0.0.1:1/0")
    assert await running.wait() == 3
    assert [line[:7] for line in running.output.splitlines() if "Redis" in line] == ["error: "]
    assert "Traceback" not in running.output
    assert "secret" not in running.output


async def test_a_setting_that_cannot_be_is_json_for_who_wants_json() -> None:
    answer = await run_command(NOWHERE, "status", "--namespace", "a:b", "-o", "json")
    assert (answer.code, answer.err) == (2, "")
    assert answer.data["status"] == "invalid"
    assert "namespace" in answer.data["error"]


async def test_wrong_options_are_text() -> None:
    answer = await run_command(NOWHERE, "status", "-o", "json", "--no-such-option")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: no such option '--no-such-option'.\n")


@pytest.mark.parametrize("name", [name for name in ACT if not name.endswith("show")])
async def test_a_key_that_holds_something_else_is_a_case_for_the_doctor(
    reaper: Command, client: Redis, name: str
) -> None:
    for key in (KEYS.stream, KEYS.dead, KEYS.settings):
        await client.set(key, "somebody else's")
    answer = await reaper(*typed(name))
    assert answer.code == 2
    assert "WRONGTYPE" in answer.err
    assert "`reaper doctor` names the key" in answer.err


KINDS = {name: kind for name, kind in TYPES.items() if hasattr(KEYS, name) or hasattr(NAMESPACE, name)}


async def _make_foreign(client: Redis, field: str) -> None:
    """Have the key hold what is never ours there."""
    for place in (KEYS, NAMESPACE):
        key = getattr(place, field, None)
        if key and KINDS[field] == "string":
            await client.rpush(key, "somebody else's")
        elif key:
            await client.set(key, "somebody else's")


async def _is_told(reaper: Command, name: str) -> None:
    answer = await reaper(*typed(name))
    assert answer.code in (0, 1, 2)
    assert "Traceback" not in answer.err
    if answer.code == 2:
        assert re.fullmatch(r"error: [^\n]+\n", answer.err), "one sentence"


@pytest.mark.parametrize("name", ASKING)
async def test_where_every_key_holds_something_else_there_is_one_sentence_or_an_answer(
    reaper: Command, client: Redis, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for field in KINDS:
        await _make_foreign(client, field)
    before = await dump(client)
    await _is_told(reaper, name)
    assert await dump(client) == before, "nothing of others is changed"


async def test_the_doctor_names_them_as_well(reaper: Command, client: Redis) -> None:
    await client.set(KEYS.schedule, "somebody else's")
    await client.rpush(NAMESPACE.replicas, "somebody else's")
    found = (await reaper("doctor", *PAIR, "-o", "json")).data["findings"]
    first, other = [one for one in found if one["check"] == "keys"]
    assert (first["level"], other["level"]) == ("wrong", "wrong")
    assert first["text"].startswith("{reaper}:replicas holds a list, where a hash belongs: ")
    assert other["text"].startswith("{orders}:scheduled:billing holds a string, where a zset belongs: ")


@pytest.mark.parametrize(
    ("login", "path", "advice"),
    [
        ("nobody:wrong@", "0", "Login rejected: correct the user name and the password in redis_url."),
        ("", "99", "The server has fewer databases: end redis_url with a lower number, or with none."),
        ("pinger:pass@", "0", "The user lacks permissions: apply the rules that `reaper acl` prints."),
    ],
    ids=["password", "database", "rights"],
)
async def test_a_server_that_is_there_and_of_no_use_is_told_from_one_that_is_not(
    client: Redis, server: RedisServer, login: str, path: str, advice: str
) -> None:
    await client.execute_command("ACL", "SETUSER", "pinger", "on", ">pass", "+ping", "+select")
    answer = await run_command(f"redis://{login}127.0.0.1:{server.port}/{path}", "status")
    assert answer.code == 3
    assert answer.err.rstrip().endswith(advice)


@pytest.mark.parametrize("line", ["reaper --help", "reaper --version", "reaper status -h", "workers run --help"])
async def test_help_that_cannot_be_written_is_a_sentence(line: str) -> None:
    with Path(os.devnull).with_name("full").open("wb") as full:
        ended = await run_process([sys.executable, "-m", *line.split()], stdout=full, check=False, cwd=ROOT)
    assert ended.returncode == 2
    assert ended.stderr == b"error: cannot read or write: No space left on device.\n"


async def test_a_terminal_that_lacks_a_character_is_shown_its_escape(server: RedisServer) -> None:
    command = [sys.executable, "-m", "reaper", "status", *PAIR, "--redis-url", server.url]
    ended = await run_process(command, check=False, cwd=ROOT, env=os.environ | {"PYTHONIOENCODING": "ascii:strict"})
    assert (ended.returncode, ended.stderr) == (1, b""), "it is degraded, because there is no replica"


MISSING = [
    *(
        ("dead-letters", verb, KEYS.name, "1-1", *more)
        for verb, *more in (("show",), ("redrive",), ("delete", "--yes"))
    ),
    ("explain", "1-1"),
    *((*name.split()[1:], "orders/biling", *(() if name.endswith("list") else ASKING[name][1:])) for name in ACT),
    ("explain", "1-1", "--group", "orders/biling"),
    ("drain", "carol"),
    *(("watch", verb, "orders/biling") for verb in ("add", "remove")),
]
"""Every command that names an ID or a group, with one that does not exist."""


def test_no_command_that_names_something_escapes_the_next_test() -> None:
    naming = {
        name for name, one in LEAVES for option in one.params if option.name in ("ids", "entry_id", "job", "keys")
    }
    tested = {f"reaper {' '.join(words[: len(name.split()) - 1])}" for words in MISSING for name in naming}
    assert {name for name in naming if not name.startswith("reaper pipeline")} <= tested


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
async def test_what_does_not_exist_is_a_negative_result_everywhere(
    reaper: Command, client: Redis, words: tuple[str, ...]
) -> None:
    await client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    before = await dump(client)
    people, machines = await reaper(*words), await reaper(*words, "-o", "json")
    assert (people.code, machines.code) == (1, 1)
    if words[1] not in ("redrive", "delete") or "orders/biling" in words:
        assert people.err == f"error: {machines.data['error']}\n"
        assert machines.data["status"] == "not_possible"
    assert await dump(client) == before
