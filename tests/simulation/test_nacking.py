"""Giving back by XNACK (Redis 8.8), on the model of such a server: where it may be used, where not, and in stories."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hiredis
import pytest

from tests.simulation.conftest import Make
from tests.simulation.draw import draw
from tests.simulation.places import GROUP, KEYS
from tests.simulation.play import play
from tests.simulation.server.commands import COMMANDS
from tests.simulation.server.server import ModelServer
from tests.simulation.server.streams import Stream
from tests.simulation.story import IN_PLACE, Setting, Story
from workers.protocol.calls.group_moves import RECOVER

Say = Callable[..., Any]
FENCE = "reaper:7:alice"


def talk(server: ModelServer) -> Say:
    """Return what sends a command and returns the answer, of a user as any."""

    def say(*words: str | bytes | int) -> Any:
        answers = hiredis.Reader()
        session = server.connect(answers.feed)
        session.feed(hiredis.pack_command(words))  # type: ignore[arg-type]
        session.close()
        return answers.gets()

    return say


@pytest.fixture
def server_of(make: Make) -> Callable[[str], ModelServer]:
    """Return a server of a version, with one delivery that is overdue."""

    def made(version: str) -> ModelServer:
        server = make(Story(1, Setting(version=version), (), ())).server
        say = talk(server)
        say("SET", KEYS.lease, FENCE)
        beat = server.clock.now_us() // 1000
        say("HSET", KEYS.settings, "visibility_ms", 30_000, "unbroken", 1, "beat", beat)
        say("XGROUP", "CREATE", KEYS.stream, GROUP, "0", "MKSTREAM")
        say("XADD", KEYS.stream, "*", "n", 1)
        say("XREADGROUP", "GROUP", GROUP, "w1", "STREAMS", KEYS.stream, ">")
        return server

    return made


def give_back(server: ModelServer) -> tuple[bytes, int, int]:
    """Have a leader recover all that is pending in place; return its owner, idle time in ms and count."""
    say = talk(server)
    keys = [
        KEYS.stream, KEYS.stream, KEYS.retry, KEYS.dead, KEYS.settings, KEYS.schedule, KEYS.quarantine, KEYS.journal,
        KEYS.lease,
    ]  # fmt: skip
    [[entry_id, *_]] = say("XPENDING", KEYS.stream, GROUP, "-", "+", 1)
    say("XCLAIM", KEYS.stream, GROUP, "w1", 0, entry_id, "IDLE", 60_000, "JUSTID")
    say("HSET", KEYS.settings, "policy", IN_PLACE, "max_deliveries", 3)
    reply = say("EVAL", RECOVER.source, len(keys), *keys, GROUP, 1_000, FENCE, 7, 10**9, entry_id)
    assert len(reply[4]) == 1
    [[_, owner, idle_ms, times]] = say("XPENDING", KEYS.stream, GROUP, "-", "+", 1)
    return owner, idle_ms, times


def test_what_is_given_back_is_nobodys_where_the_server_knows_that(server_of: Callable[[str], ModelServer]) -> None:
    assert give_back(server_of("8.8")) == (b"", -1, 1)


@pytest.mark.parametrize("version", ["8.4", "8.6"])
def test_where_it_does_not_it_stays_its_last_consumers(server_of: Callable[[str], ModelServer], version: str) -> None:
    owner, idle_ms, times = give_back(server_of(version))
    assert (owner, times) == (b"w1", 1)
    assert idle_ms >= 10**9


def test_who_may_not_is_asked_for_that_and_never_denied(
    server_of: Callable[[str], ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of("8.8")
    server.denied = {"xnack"}
    denied = []
    monkeypatch.setattr(server, "_denied_in_script", lambda *who: denied.append(who))
    assert give_back(server)[0] == b"w1"
    assert not denied
    server.denied.clear()  # from call to call, as the server is
    assert give_back(server)[0] == b""


def test_an_answer_that_is_wrong_does_no_harm(
    server_of: Callable[[str], ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of("8.8")
    server.denied = {"xnack"}
    monkeypatch.setattr(server, "_may", lambda _words: True)
    assert give_back(server)[0] == b"w1"


def test_in_whole_stories_it_is_used_and_nobody_gets_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nacked: list[list[bytes]] = []
    known = COMMANDS[b"XNACK"]
    nameless: set[bytes] = set()

    def told(core: Any, words: list[bytes]) -> Any:
        nacked.append(words)
        stream = core.keys.values[words[1]]
        assert isinstance(stream, Stream)
        nameless.update(name for name in stream.groups[words[2]].consumers if not name)
        return known.handler(core, words)

    monkeypatch.setitem(COMMANDS, b"XNACK", replace(known, handler=told))
    stories = (one for one in map(draw, range(1, 100)) if one.setting.redelivery == IN_PLACE)
    while not nacked:
        story = next(stories)
        assert not play(replace(story, setting=replace(story.setting, version="8.8"))).violations
    assert not nameless
    assert {words[3] for words in nacked} == {b"FAIL"}
