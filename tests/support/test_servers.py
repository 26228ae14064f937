"""The servers of the tests' own do what their names say."""

import os
import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import StartServer
from tests.support.servers import NAMED, RedisServer, binaries_at_hand, lane_of, release_of

pytestmark = [pytest.mark.anyio, pytest.mark.contract]


def test_the_packaged_servers_are_among_those_at_hand() -> None:
    lanes = {lane_of(binary) for binary in binaries_at_hand()}
    expected = {"valkey-9.1.2"}
    if sys.version_info < (3, 13):
        expected |= {"6.2.14"}
    if sys.version_info < (3, 14) and (sys.platform, platform.machine()) == ("linux", "x86_64"):
        expected |= {"8.2.3"}
    assert expected <= lanes


def test_releases_at_hand_are_distinct_and_run_redis_first_and_by_version() -> None:
    releases = [release_of(binary) for binary in binaries_at_hand()]
    assert all(version for _, version in releases)
    assert len(set(releases)) == len(releases)
    assert releases == sorted(releases, key=lambda release: (release[0] != "Redis", release))


@pytest.fixture
def _looked_at_anew() -> Iterator[None]:
    binaries_at_hand.cache_clear()
    yield
    binaries_at_hand.cache_clear()


@pytest.mark.usefixtures("_looked_at_anew")
def test_a_server_is_also_found_by_name_and_a_name_of_something_else_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "some-name"
    named.write_text("#!/bin/sh\necho 'Redis server v=99.1.0 sha=0'\n")
    named.chmod(0o755)
    monkeypatch.setenv(NAMED, str(named))
    assert named in binaries_at_hand()
    binaries_at_hand.cache_clear()
    monkeypatch.setenv(NAMED, os.pathsep.join([str(named), "/bin/true"]))
    with pytest.raises(RuntimeError, match=f"{NAMED} names '/bin/true', and that is no server"):
        binaries_at_hand()


def test_a_server_is_as_new_after_a_reset(server: RedisServer) -> None:
    server.command("SET", "left", "over")
    server.command("CONFIG", "SET", "maxmemory", "1")
    server.reset()
    assert server.command("DBSIZE") == 0
    assert server.command("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"0"]


def test_data_survives_a_kill_where_it_was_appended(start_server: StartServer) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    server.command("SET", "kept", "1")
    port, pid = server.port, server.pid
    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.command("PING")
    server.start()
    assert (server.command("GET", "kept"), server.port) == (b"1", port)
    assert server.pid != pid


def test_data_is_gone_after_a_restart_without_persistence(start_server: StartServer) -> None:
    server = start_server()
    server.command("SET", "lost", "1")
    server.restart()
    assert server.command("GET", "lost") is None


def test_a_paused_server_accepts_but_does_not_answer(start_server: StartServer) -> None:
    server = start_server()
    server.pause()
    with socket.create_connection(("127.0.0.1", server.port), timeout=0.1) as connection:
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)
    server.resume()
    assert server.command("PING")


def test_no_server_process_is_left_when_its_block_ends(start_server: StartServer) -> None:
    server = start_server()
    pid = server.pid
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
