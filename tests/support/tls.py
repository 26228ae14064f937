"""TLS for servers that have none: certificates of an authority of the tests' own, and a tunnel that ends TLS."""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

_HANDSHAKE = b"\x16"


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, and its certificates for 127.0.0.1 and for a client."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    """Encrypted with `KEY_PASSWORD`."""


KEY_PASSWORD = "k&y=?"  # noqa: S105


def make_certificates(folder: Path) -> Certificates:
    """Make them all, in ``folder``."""
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    made: list[Path] = []
    for name, protection in (("server", NoEncryption()), ("client", BestAvailableEncryption(KEY_PASSWORD.encode()))):
        issued = authority.issue_cert("127.0.0.1", common_name=name)
        signed, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
        issued.cert_chain_pems[0].write_to_path(signed)
        private = load_pem_private_key(issued.private_key_pem.bytes(), None)
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
        made += [signed, key]
    return Certificates(ca, *made)


@contextmanager
def tunnel(port: int, certificates: Certificates) -> Iterator[int]:
    """Listen in front of ``port``, for who speaks TLS and has a certificate of the authority, and for who does not.

    Yields the port: Sentinels, which speak plainly here, name the same one to clients that do not.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, port, context), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, port: int, context: ssl.SSLContext) -> None:
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_serve, args=(client, port, context), daemon=True).start()


def _serve(client: socket.socket, port: int, context: ssl.SSLContext) -> None:
    with suppress(OSError), client, socket.create_connection(("127.0.0.1", port)) as server:
        if client.recv(1, socket.MSG_PEEK) != _HANDSHAKE:
            _forward(client, server)
            return
        with context.wrap_socket(client, server_side=True) as inside:
            _forward(inside, server)


def _forward(client: socket.socket, server: socket.socket) -> None:
    """Forward both ways until one side ends. One thread alone may use a socket with TLS."""
    other = {client: server, server: client}
    while True:
        decrypted = isinstance(client, ssl.SSLSocket) and client.pending()
        for ready in [client] if decrypted else select.select([client, server], [], [])[0]:
            data = ready.recv(65_536)
            if not data:
                return
            other[ready].sendall(data)
