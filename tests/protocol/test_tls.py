"""Certificates: ours is shown, theirs is checked, and both may be renewed while everything runs."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.cluster import started_cluster
from tests.support.patience import scaled
from tests.support.sentinel import NAME, SentinelServer
from tests.support.servers import RedisServer
from tests.support.tls import KEY_PASSWORD, Certificates, make_certificates, tunnel
from workers import WorkerSettings
from workers.protocol.connection import CONNECT_TIMEOUT_S, blocking_client, commands_client, reader_client

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


def address(url: str, certificates: Certificates, **other: str) -> str:
    """Return what settings make of an address and certificates."""
    given: dict[str, Any] = {
        "redis_ca_file": str(certificates.ca),
        "redis_cert_file": str(certificates.client),
        "redis_key_file": str(certificates.client_key),
        "redis_key_password": KEY_PASSWORD,
    }
    return WorkerSettings(stream="s", group="g", redis_url=url, **given | other).redis_url


async def test_every_client_shows_our_certificate_and_checks_theirs(port: int, certificates: Certificates) -> None:
    url = address(f"rediss://127.0.0.1:{port}/0", certificates)
    async with commands_client(url) as client, reader_client(url) as reader:
        assert await client.set("n", 1)
        assert await reader.get("n") == b"1"
    with closing(blocking_client(url)) as blocking:
        assert blocking.get("n") == b"1"


async def test_a_server_of_another_authority_is_not_spoken_to(
    port: int, certificates: Certificates, tmp_path: Path
) -> None:
    others = make_certificates(tmp_path / "others")
    url = address(f"rediss://127.0.0.1:{port}/0", replace(certificates, ca=others.ca))
    async with commands_client(url) as client:
        with pytest.raises(RedisConnectionError, match="certificate verify failed"):
            await client.ping()


async def test_a_file_that_cannot_be_read_is_named(port: int, certificates: Certificates) -> None:
    url = f"rediss://127.0.0.1:{port}/0"
    for missing in (
        address(url, certificates, redis_ca_file="/nowhere/ca.pem"),
        address(url, certificates, redis_key_password="wrong"),  # noqa: S106
    ):
        async with commands_client(missing) as client:
            with pytest.raises(RedisConnectionError, match=r"a certificate or key cannot be read \(/.*ca\.pem, /.*\)"):
                await client.ping()


async def test_sentinels_and_the_master_they_name_are_both_behind_tls(
    binary: Path, port: int, certificates: Certificates
) -> None:
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


async def test_a_certificate_that_is_renewed_counts_at_the_next_connect(
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
