"""A port that was given out is a server's own, for as long as it is stopped, too."""

import socket
import sys

import pytest

from tests.conftest import StartServer
from tests.support.ports import free_port


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port that is bound cannot be listened on")
def test_nobody_is_given_it_and_whoever_is_told_of_it_may_listen() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.contract
def test_a_server_that_is_stopped_keeps_its_own(start_server: StartServer) -> None:
    server = start_server()
    server.stop()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", server.port))
    server.start()
    assert server.command("PING")
