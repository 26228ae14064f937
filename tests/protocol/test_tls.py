"""Certificates: ours is shown, theirs is checked, and both may be renewed while everything runs."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import quote

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.cluster import started_cluster
from tests.support.patience import scaled
from tests.support.sentinel import NAME, SentinelServer
from tests.support.servers import RedisServer
from tests.support.tls import KEY_PASSWORD, Certificates, make_certificates, tunnel
from workers import WorkerSettings
from workers.protocol.connection import CONNECT_TIMEOUT_S, blocking_client, commands_client, reader_client
from workers.protocol.errors import UnreachableError
from workers.protocol.server import check_server

pytestmark = [pytest.mark.anyio, pytest.mark.only_on("valkey")]  # TLS ends before the server, whichever that is


@pytest.fixture(autouse=True)
def _long_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes its time to shake hands, on both sides."""
    monkeypatch.setattr("workers.protocol.connection.CONNECT_TIMEOUT_S", scaled(CONNECT_TIMEOUT_S))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def port(server: RedisServer, certificates: Certificates) -> Iterator[int]:
    with tunnel(server.port, certificates) as port:
        yield port


def address(url: str, certificates: Certificates, key_password: str = KEY_PASSWORD, **other: str) -> str:
    """Return what settings make of an address and certificates."""
    given: dict[str, Any] = {
        "redis_ca_file": str(certificates.ca),
        "redis_cert_file": str(certificates.client),
        "redis_key_file": str(certificates.client_key),
    }
    url = f"{url}?ssl_password={quote(key_password)}"
    return WorkerSettings(stream="s", group="g", redis_url=url, **given | other).redis_url


async def test_every_client_shows_our_certificate_and_checks_theirs(port: int, certificates: Certificates) -> None:
    url = address(f"rediss://127.0.0.1:{port}/0", certificates)
    async with commands_client(url) as client, reader_client(url) as reader:
        assert await client.set("n", 1)
        assert await reader.get("n") == b"1"
    with closing(blocking_client(url)) as blocking:
        assert blocking.get("n") == b"1"


async def test_a_failed_handshake_comes_with_advice(port: int, certificates: Certificates, tmp_path: Path) -> None:
    others = replace(certificates, ca=make_certificates(tmp_path / "others").ca)
    ours = f"rediss://127.0.0.1:{port}/0"
    unreadable = r"a certificate or key cannot be read \(/.*ca\.pem, /.*\)"
    correct = "Correct redis_ca_file, redis_cert_file or"
    for url, said, advice in (
        (address(ours, others), "certificate verify failed", r"redis_ca_file \(REAPER_REDIS_CA_FILE\)\.$"),
        (address(ours, certificates, redis_ca_file="/nowhere/ca.pem"), unreadable, correct),
        (address(ours, certificates, key_password="wrong"), unreadable, correct),  # noqa: S106
    ):
        async with commands_client(url) as client:
            with pytest.raises(RedisConnectionError, match=said):
                await client.ping()
            with pytest.raises(UnreachableError, match=advice):
                await check_server(client, url)


@pytest.mark.parametrize(
    ("scheme", "said", "advice"),
    [
        ("rediss", "[SSL: …] certificate is not valid for 'h'.", "Write the name that its certificate is for"),
        ("rediss", "[SSL: CERTIFICATE_VERIFY_FAILED] … certificate has expired", "Renew its certificate"),
        ("rediss", "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]", "set redis_cert_file and redis_key_file"),
        ("rediss", "(104, 'Connection reset by peer')", "may need TLS .*, or redis_cert_file"),
        ("rediss", "Timeout connecting to server", "may need TLS"),
        ("redis", "(104, 'Connection reset by peer')", "may need TLS"),
        ("redis", "Connection refused", r"to the right address\.$"),
    ],
)
async def test_every_way_to_miss_the_other_has_an_advice(scheme: str, said: str, advice: str) -> None:
    client: Any = SimpleNamespace(info=AsyncMock(side_effect=RedisConnectionError(said)))
    with pytest.raises(UnreachableError, match=advice):
        await check_server(client, f"{scheme}://h:1/0")


async def test_sentinels_and_their_master_are_behind_tls(binary: Path, port: int, certificates: Certificates) -> None:
    with (
        SentinelServer.started(binary, sentinel=f"monitor {NAME} 127.0.0.1 {port} 1") as sentinel,
        tunnel(sentinel.port, certificates) as outside,
    ):
        url = address(f"rediss+sentinel://127.0.0.1:{outside}/{NAME}/0", certificates)
        async with commands_client(url) as client, reader_client(url) as reader:
            assert await client.set("n", 2)
            assert await reader.get("n") == b"2"
        with closing(blocking_client(url)) as blocking:
            assert blocking.get("n") == b"2"


async def test_a_cluster_behind_tls_is_asked_and_spoken_to_over_it(binary: Path, certificates: Certificates) -> None:
    with started_cluster(binary, masters=1) as cluster, tunnel(cluster.nodes[0].port, certificates) as outside:
        cluster.nodes[0].command("CONFIG", "SET", "cluster-announce-port", outside)
        url = address(f"rediss+cluster://127.0.0.1:{outside}", certificates)
        async with commands_client(url) as client, reader_client(url, key="n") as reader:
            assert await client.set("n", 3)
            assert await reader.get("n") == b"3"
        with closing(blocking_client(url, key="n")) as blocking:
            assert blocking.get("n") == b"3"
        async with commands_client(url.replace("rediss+", "redis+").partition("?")[0]) as plain:
            assert await plain.get("n") == b"3"


async def test_a_renewed_certificate_counts_when_connecting(
    port: int, certificates: Certificates, tmp_path: Path
) -> None:
    strangers = make_certificates(tmp_path / "strangers")
    shown, key = tmp_path / "shown.pem", tmp_path / "key.pem"
    files = {"redis_cert_file": str(shown), "redis_key_file": str(key)}

    def show(whose: Certificates) -> None:
        shown.write_bytes(whose.client.read_bytes())
        key.write_bytes(whose.client_key.read_bytes())

    show(certificates)
    async with commands_client(address(f"rediss://127.0.0.1:{port}/0", certificates, **files)) as client:
        assert await client.ping()
        show(strangers)
        assert await client.ping(), "who is connected stays so"
        await client.connection_pool.disconnect()
        with pytest.raises(RedisConnectionError):
            await client.ping()
        show(certificates)
        assert await client.ping()
