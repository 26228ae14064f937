"""What is wrong with TLS for good is told at once, though redis-py calls it a lost contact; what may pass is borne."""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from redis.connection import SSLConnection

from reaper.pipeline.redis_stream import RedisStreamError
from reaper.pipeline.redis_stream.cluster import open_link
from reaper.pipeline.redis_stream.tls import tls_refusal
from tests.pipeline.streams import JOURNAL, add
from tests.support.cluster import started_cluster
from tests.support.patience import scaled
from tests.support.sentinel import NAME, SentinelServer
from tests.support.servers import RedisServer
from tests.support.tls import KEY_PASSWORD, Certificates, make_certificates, tunnel

pytestmark = pytest.mark.only_on("valkey")  # TLS ends before the server, whichever that is


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("strangers"))


def files(ca: Path, client: Certificates | None, **other: str) -> str:
    """Return the part of an address that names files."""
    given = {"ssl_ca_certs": str(ca)}
    if client:
        given |= {
            "ssl_certfile": str(client.client),
            "ssl_keyfile": str(client.client_key),
            "ssl_password": KEY_PASSWORD,
        }
    return "?" + urlencode(given | other)


def length(url: str) -> object:
    """Ask for it. What is not told at once is told otherwise, when patience ends."""
    with closing(open_link(url, scaled(10))) as link:
        return link.ask_one("XLEN", JOURNAL)


@contextmanager
def answering(words: bytes) -> Iterator[int]:
    """Listen, and answer whatever comes in the same way."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client:
                        client.recv(1)
                        client.sendall(words)
                        while client.recv(65_536):
                            pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_streams_are_read_over_tls(server: RedisServer, certificates: Certificates) -> None:
    add(server, 1, 2)
    with tunnel(server.port, certificates) as port:
        assert length(f"rediss://127.0.0.1:{port}/0{files(certificates.ca, certificates)}") == 2


def test_a_server_of_another_authority_is_told_at_once(
    server: RedisServer, certificates: Certificates, strangers: Certificates
) -> None:
    with (
        tunnel(server.port, certificates) as port,
        pytest.raises(RedisStreamError, match=rf"no TLS with rediss://127.0.0.1:{port}/0: the server's certificate is"),
    ):
        length(f"rediss://127.0.0.1:{port}/0{files(strangers.ca, certificates)}")


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("shown", ["none", "a stranger's"])
def test_who_shows_no_certificate_or_a_strangers_is_told_at_once(
    server: RedisServer,
    certificates: Certificates,
    strangers: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    shown: str,
    is_slow: bool,
) -> None:
    """By TLS 1.3 it is refused when the connection is made: who writes late finds that ended, and has to read why."""
    connect: Any = SSLConnection._connect

    def connect_slowly(connection: SSLConnection) -> Any:
        connected = connect(connection)
        ended = select.poll()
        ended.register(connected, select.POLLRDHUP)
        ended.poll()
        return connected

    if is_slow:
        monkeypatch.setattr(SSLConnection, "_connect", connect_slowly)
    with tunnel(server.port, certificates) as port, pytest.raises(RedisStreamError, match="the server refuses us or"):
        length(f"rediss://127.0.0.1:{port}/0{files(certificates.ca, None if shown == 'none' else strangers)}")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"ssl_ca_certs": "/nowhere/ca.pem"}, r"a file that the address names cannot be read \(No such file"),
        ({"ssl_certfile": "/nowhere/client.pem"}, r"a file that the address names cannot be read \(No such file"),
        ({"ssl_password": "wrong"}, "certificate, key or authority cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_told_at_once(
    server: RedisServer, certificates: Certificates, wrong: dict[str, str], sentence: str
) -> None:
    with tunnel(server.port, certificates) as port, pytest.raises(RedisStreamError, match=sentence):
        length(f"rediss://127.0.0.1:{port}/0{files(certificates.ca, certificates, **wrong)}")


def test_what_speaks_no_tls_is_told_at_once(certificates: Certificates) -> None:
    with (
        answering(b"-ERR unknown command\r\n") as port,
        pytest.raises(RedisStreamError, match="what answers there speaks no TLS"),
    ):
        length(f"rediss://127.0.0.1:{port}/0{files(certificates.ca, None)}")


def test_what_speaks_nothing_but_tls_is_told_at_once() -> None:
    alert = b"\x15\x03\x01\x00\x02\x02\x46"
    with answering(alert) as port, pytest.raises(RedisStreamError, match=r"does not speak as Redis does.*rediss://"):
        length(f"redis://127.0.0.1:{port}/0")


def test_sentinels_with_a_certificate_of_another_authority_are_told_at_once(
    binary: Path, server: RedisServer, certificates: Certificates, strangers: Certificates
) -> None:
    with (
        SentinelServer.started(binary, sentinel=f"monitor {NAME} 127.0.0.1 {server.port} 1") as sentinel,
        tunnel(sentinel.port, certificates) as port,
        pytest.raises(
            RedisStreamError, match=f"no TLS with the Sentinels at 127.0.0.1:{port}: the server's certificate"
        ),
    ):
        length(f"rediss+sentinel://127.0.0.1:{port}/{NAME}/0{files(strangers.ca, certificates)}")


def test_a_node_of_a_cluster_with_a_certificate_of_another_authority_is_told_at_once(
    binary: Path, certificates: Certificates, strangers: Certificates
) -> None:
    with (
        started_cluster(binary, masters=1) as cluster,
        tunnel(cluster.nodes[0].port, certificates) as port,
        pytest.raises(RedisStreamError, match="the server's certificate is refused"),
    ):
        length(f"rediss+cluster://127.0.0.1:{port}{files(strangers.ca, certificates)}")


def caused(error: Exception, cause: Exception) -> Exception:
    """Return an error as it is when it was raised where another one was handled."""
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    "cause",
    [
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        ssl.SSLZeroReturnError(6, "closed"),
        TimeoutError("The handshake operation timed out"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_a_server_that_goes_away_while_hands_are_shaken_is_waited_for(cause: Exception) -> None:
    assert tls_refusal(caused(ConnectionError("no contact"), cause)) is None


def test_the_cause_is_found_behind_another_error() -> None:
    cause = caused(ConnectionError("x"), PermissionError(13, "Permission denied"))
    assert tls_refusal(caused(ConnectionError("no contact"), cause)) == (
        "a file that the address names cannot be read (Permission denied)"
    )
