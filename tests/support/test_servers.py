"""The servers of the tests' own do what their names say."""

import os
import socket

import pytest
import redis

from tests.conftest import StartServer
from tests.support.servers import RedisServer, binaries_at_hand, version_of

pytestmark = [pytest.mark.anyio, pytest.mark.contract]


def test_the_packaged_server_is_among_those_at_hand() -> None:
    assert (6, 2, 14) in [version_of(binary) for binary in binaries_at_hand()]


def test_versions_at_hand_are_distinct_and_run() -> None:
    versions = [version_of(binary) for binary in binaries_at_hand()]
    assert None not in versions
    assert len(set(versions)) == len(versions)


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
