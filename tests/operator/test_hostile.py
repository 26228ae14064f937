"""Hostile text from outside never reaches a terminal unescaped, in any command."""

import base64
import json
import re
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.pipeline.command import show_result
from reaper.pipeline.progress import ProgressLine
from reaper.replicas import GroupReport
from tests.operator.conftest import Command, run_command
from tests.operator.every import ASKING, LEAVES
from tests.operator.every import KEYS as HARMLESS
from tests.operator.heartbeats import KEYS, SELDOM_MS, a_replica, a_report, register
from tests.scripts.scene import Scene, entry_id
from tests.support.hostile import EVIL, EVIL_BYTES, EVIL_NAME, forged_lines, raw_characters
from tests.support.servers import RedisServer
from workers.protocol.keys import group_keys
from workers.runtime.printing import LONGEST_TEXT, printable, styled

pytestmark = pytest.mark.anyio

STREAM, GROUP = EVIL_NAME, f"bill{EVIL_NAME}"
FULL_NAME = f"{STREAM}/{GROUP}"
SETTINGS = ("--groups", FULL_NAME)
LETTER = entry_id(900)
JOB = entry_id(1)

OF_LETTERS = (FULL_NAME, LETTER)
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name.removeprefix("reaper "): tuple(FULL_NAME if word == HARMLESS.name else word for word in words)
       for name, words in ASKING.items()},
    "dead-letters show": OF_LETTERS, "dead-letters redrive": OF_LETTERS, "explain": (JOB, *SETTINGS),
    "acl": SETTINGS, "drain": (f"alice{EVIL}-1-abc", "--timeout", "0"), "watch remove": (EVIL_NAME + "/billing",),
    "groups requeue": (FULL_NAME, "1-0"),
}  # fmt: skip
ELSEWHERE = {
    "run": "logs only: tests/telemetry/test_logs.py",
    "drill": "prints what it made up itself, by `show`",
    "demo": "as the drill",
    "compare": "as the drill",
    "pipeline": "prints by `show` and `ProgressLine`: below",
}


def test_every_command_is_looked_at() -> None:
    ours = {name.removeprefix("reaper ") for name, _ in LEAVES if name != "worker run"}  # which logs only
    assert {"pipeline" if name.startswith("pipeline") else name for name in ours} == COMMANDS.keys() | ELSEWHERE.keys()


@pytest.fixture
async def hostile(client: Redis) -> Scene:
    """A group in which everything that somebody else can write is hostile."""
    scene = Scene(client, keys=group_keys(STREAM, GROUP))
    keys = scene.keys
    await scene.prepare(lease=f"alice{EVIL}-1-abc.0a@1000")
    await scene.add("reaper.job", EVIL_BYTES, "reaper.consumers", EVIL_BYTES, EVIL_BYTES, EVIL_BYTES, at=JOB)
    await client.execute_command(
        "XCLAIM", keys.stream, keys.group, EVIL_BYTES, 0, JOB, "IDLE", 99_000, "FORCE", "JUSTID", "LASTID", JOB
    )
    await client.execute_command(
        "XADD", keys.dead, LETTER, EVIL_BYTES, EVIL_BYTES, "reaper.job", EVIL_BYTES, "reaper.consumers", EVIL_BYTES,
        "reaper.dead.stream", EVIL_BYTES, "reaper.dead.group", EVIL_BYTES, "reaper.dead.reason", EVIL_BYTES,
        "reaper.dead.error", EVIL_BYTES, "reaper.dead.traceback", EVIL_BYTES, "reaper.dead.entry", EVIL_BYTES,
    )  # fmt: skip
    facts: dict[Any, Any] = dict.fromkeys(("consumer", "reason", "error", "verb", "new_entry", "holder", "group"), EVIL)
    for journal in (keys.journal, KEYS.journal):
        for event in (EVIL.encode(), b"recovered", b"lease_taken", b"lease_left"):
            await client.xadd(journal, {"event": event, "job": EVIL_BYTES, "entry": JOB, "token": 7, **facts})
    for name in ("policy", "recovery", "mismatch", "visibility_ms"):
        await client.hset(keys.settings, name, EVIL_BYTES)
    await client.hset(KEYS.watched, EVIL_BYTES, EVIL_BYTES)
    await client.zadd(keys.schedule, {EVIL_BYTES: 1, b"x" + EVIL_BYTES: 2**52})
    await client.hset(keys.quarantine, EVIL_BYTES, EVIL_BYTES)
    await _hold(scene, a_report(group=f"{STREAM}/{GROUP}", disabled=EVIL, error=EVIL, redelivery=EVIL, undeliverable=3))
    return scene


async def _hold(scene: Scene, report: GroupReport) -> None:
    now_ms = await scene.now_ms()
    evil = {"heartbeat_ms": SELDOM_MS, "host": EVIL, "version": EVIL, "server": EVIL}
    alice = a_replica(f"alice{EVIL}", report, at_ms=now_ms, **evil)
    await scene.client.zadd(KEYS.drained, {EVIL: now_ms + SELDOM_MS})
    await register(scene.client, alice, a_replica(f"bob{EVIL}", report, at_ms=now_ms, **evil))


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.usefixtures("hostile")
async def test_nothing_from_outside_is_printed_as_it_is(reaper: Command, command: str) -> None:
    answer = await reaper(*command.split(), *COMMANDS[command])
    assert answer.out + answer.err, "it prints something"
    assert raw_characters(answer.out + answer.err) == set()
    assert forged_lines(answer.out + answer.err) == []


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.usefixtures("hostile")
async def test_json_is_ascii_and_exact(reaper: Command, command: str) -> None:
    answer = await reaper(*command.split(), *COMMANDS[command], "-o", "json")
    assert answer.out.isascii()
    assert raw_characters(answer.out + answer.err) == set()
    assert answer.data if answer.out else answer.code == 2, "a document, or a sentence on stderr"


NUMBERS = ("generation", "run_ms", "idle_ms", "visibility_ms", "delivery", "token", "gone_ages")
NO_NUMBERS: tuple[str | int, ...] = (EVIL, -1, "9" * 400, "", "1.5", "\u0661")


@pytest.mark.parametrize("command", ["doctor", "explain", "status"])
async def test_what_should_be_a_number_in_a_journal_and_is_none_stops_no_command(
    hostile: Scene, reaper: Command, command: str
) -> None:
    for journal in (hostile.keys.journal, KEYS.journal):
        for event in ("acked", "scanned", "recovered", "lease_taken", "lease_left"):
            for value in NO_NUMBERS:
                fields: dict[Any, Any] = {"event": event, "entry": JOB, "group": GROUP, **dict.fromkeys(NUMBERS, value)}
                await hostile.client.xadd(journal, fields)
    answer = await reaper(*command.split(), *COMMANDS[command], "-o", "json")
    assert answer.data


async def test_json_says_what_is_there(hostile: Scene, reaper: Command) -> None:
    shown = (await reaper("dead-letters", "show", *COMMANDS["dead-letters show"], "-o", "json")).data
    assert shown["reason"] == EVIL_BYTES.decode("utf-8", "backslashreplace")
    assert base64.b64decode(shown["fields"][0][0]["base64"]) == EVIL_BYTES
    assert EVIL in (await reaper("status", "-o", "json")).data["replicas"][0]["id"]
    assert hostile.keys.name == FULL_NAME


@pytest.mark.usefixtures("hostile")
async def test_on_a_terminal_only_our_colours_are_there(server: RedisServer) -> None:
    printed = (await run_command(server.url, "status", *SETTINGS, colour=True)).out
    assert "\x1b[1m" in printed
    assert raw_characters(re.sub(r"\x1b\[[0-9;]*m", "", printed)) == set()


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--groups", EVIL.replace("\x00", "")),
        ("status", "--namespace", EVIL.replace("\x00", "")),
        ("status", "--redis-url", "redis://\x1b[2J\u202e@127.0.0.1:1/0"),
        ("dead-letters", "show", "a\x1b[2J/b\u202e", "1-1"),
        ("dead-letters", "redrive", "a/b", "\x1b[2J"),
        ("explain", "\x1b[2J\udcff\u202e", "--groups", "orders/billing"),
    ],
)
@pytest.mark.usefixtures("client")
async def test_errors_and_words_given_are_printed_as_escapes(reaper: Command, words: tuple[str, ...]) -> None:
    answer = await reaper(*words)
    assert answer.out + answer.err
    assert raw_characters(answer.out + answer.err) == set()
    assert forged_lines(answer.out + answer.err) == []


async def test_a_redrive_journals_the_reason_as_it_is(hostile: Scene, reaper: Command) -> None:
    await hostile.client.delete(hostile.keys.journal)
    await hostile.client.hset(hostile.keys.settings, "policy", "stream")
    assert (await reaper("dead-letters", "redrive", *COMMANDS["dead-letters redrive"])).code == 0
    [(_, flat)] = await hostile.client.execute_command("XRANGE", hostile.keys.journal, "-", "+")
    assert flat[flat.index(b"reason") + 1] == EVIL_BYTES


async def test_questions_are_asked_as_escapes(hostile: Scene, reaper: Command) -> None:
    purge = await reaper("dead-letters", "delete", FULL_NAME, "--all", typed="no\n")
    forget = await reaper("groups", "forget", FULL_NAME, typed="n\n")
    for answer in (purge, forget):
        assert "ord\\u202eers" in answer.err
        assert raw_characters(answer.out + answer.err) == set()
    assert await hostile.client.exists(hostile.keys.dead)


def test_a_line_is_one_line_and_only_our_colours_are_colours() -> None:
    assert printable(f"a{EVIL}b") == printable(f"a{EVIL}b").strip()
    assert raw_characters(printable(EVIL)) == set()
    assert printable(styled("x\x1b[5m", "red", "bold")) == "\x1b[31;1mx\\x1b[5m\x1b[0m"
    assert printable("\x1b<:31>\x1b[31m") == "\\x1b<:31>\\x1b[31m"
    assert printable("\ud800\udcff \u202e") == "\\ud800\\udcff \\u202e"


def test_long_text_is_cut() -> None:
    long = styled("x" * (LONGEST_TEXT + 10), "bold")
    assert printable(long) == f"\x1b[1m{'x' * LONGEST_TEXT} … (10 more characters)\x1b[0m"
    assert printable("x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    assert printable(long, whole=True).count("x") == LONGEST_TEXT + 10


def test_the_pipeline_prints_in_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine(clock=lambda: 0.0)
    progress.show(f"reading {EVIL}")
    show_result({"stream": EVIL}, [f"{EVIL}: 3 entries trimmed"], machine=False)
    show_result({"stream": EVIL}, [], machine=True)
    printed = capsys.readouterr()
    assert "reading \\x1b]0;owned" in printed.err
    assert raw_characters(printed.err + printed.out) == set()
    assert forged_lines(printed.err + printed.out) == []
    assert json.loads(printed.out.splitlines()[1]) == {"stream": EVIL}
