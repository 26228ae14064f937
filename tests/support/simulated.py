"""A simulated Redis 8.8 over TCP (fakeredis), the one server with XNACK that everybody can install."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from fakeredis import TcpFakeServer

from tests.support.ports import free_port

VERSION = (8, 8)


@contextmanager
def simulated_server() -> Iterator[str]:
    """Run such a server until the block ends; yields its URL."""
    port = free_port()
    server = TcpFakeServer(("127.0.0.1", port), server_type="redis", server_version=VERSION)
    thread = Thread(target=server.serve_forever, name="simulated server", daemon=True)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
