"""Reads with MAXCOUNT (Redis 8.10): the model against another simulator (fakeredis), and in stories."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from fakeredis import FakeRedis
from redis.exceptions import ResponseError

from tests.simulation.conftest import Make
from tests.simulation.draw import draw
from tests.simulation.play import play
from tests.simulation.server.commands import COMMANDS
from tests.simulation.story import Setting, Story
from tests.simulation.test_nacking import Say, talk

READ = ("XREADGROUP", "GROUP", "g", "c")


@pytest.fixture
def both(make: Make) -> tuple[Say, Say]:
    """The model and the other simulator, with two streams of a group. An error is told as its text."""
    fake = FakeRedis(version=(8, 10), protocol=2, legacy_responses=False)

    def ask(*words: Any) -> Any:
        try:
            return fake.execute_command(*words)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            return str(error)

    model = talk(make(Story(1, Setting(version="8.10"), (), ())).server)
    for say in (model, ask):
        for key in ("s1", "s2"):
            say("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
    return lambda *words: _plain(model(*words)), lambda *words: _plain(ask(*words))


def _plain(reply: Any) -> Any:
    if isinstance(reply, Exception):
        return str(reply).removeprefix("ERR ")
    if reply is None or isinstance(reply, list):
        return {key: [entry[0] for entry in entries] for key, entries in reply or ()}
    return reply


def _limits(random: Random) -> Iterator[str | int]:
    if count := random.randrange(4):
        yield from ("COUNT", count)
    if limit := random.randrange(6):
        yield from ("MAXCOUNT", limit)
    if random.random() < 0.5:
        yield from ("CLAIM", 10**9)


def test_two_simulators_limit_replies_in_the_same_way(both: tuple[Say, Say]) -> None:
    model, other = both
    random = Random(1)
    for number in range(1, 100):
        for say in (model, other):
            say("XADD", "s1", f"{number}-0", "n", number)
            say("XADD", "s2", f"{number}-0", "n", number)
        words = [*READ, *_limits(random), "STREAMS", *random.sample(("s1", "s2"), 2), ">", ">"]
        assert model(*words) == other(*words), words
    for limit in ("MAXCOUNT", "MAXSIZE"):
        assert "must be a positive integer" in model(*READ, limit, 0, "STREAMS", "s1", ">")


def test_earlier_servers_reject_the_words(make: Make) -> None:
    say = talk(make(Story(1, Setting(version="8.8"), (), ())).server)
    assert "syntax error" in str(say(*READ, "COUNT", 1, "MAXCOUNT", 1, "STREAMS", "s1", ">"))


def test_in_whole_stories_replies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bool] = []
    known = COMMANDS[b"XREADGROUP"]

    def told(core: Any, words: list[bytes]) -> Any:
        reads.append(b"MAXCOUNT" in words)
        return known.handler(core, words)

    monkeypatch.setitem(COMMANDS, b"XREADGROUP", replace(known, handler=told))
    story = next(one for one in map(draw, range(1, 400)) if one.setting.version == "8.10")
    assert not play(story).violations
    assert sum(reads) > len(reads) / 2  # a bare worker does not know the word
