"""A simulated Redis 8.8 over TCP (fakeredis): the one server with XNACK that everybody can install.

It has no data on disk, no replicas, and deviations of its own, which `tests/scripts/test_simulated_nack.py` holds as
strict expected failures: once one of them is mended there, the test says so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from fakeredis import TcpFakeServer
from fakeredis._clients._tcp_server import TCPFakeRequestHandler
from redis.exceptions import ResponseError

from tests.support.ports import free_port

VERSION = (8, 8)


class _Patient(TCPFakeRequestHandler):
    """Goes on after an error reply, as servers do; theirs hangs up."""

    def setup(self) -> None:
        super().setup()
        client: Any = self.current_client
        read = client.read_response

        def read_or_refusal(*args: Any, **options: Any) -> Any:
            try:
                return read(*args, **options)
            except ResponseError as error:
                return error

        client.read_response = read_or_refusal


@contextmanager
def simulated_server(*, is_patient: bool = True) -> Iterator[str]:
    """Run such a server until the block ends; gives its URL. ``is_patient``: mended, so that it can be used."""
    port = free_port()
    server = TcpFakeServer(("127.0.0.1", port), server_type="redis", server_version=VERSION)
    if is_patient:
        server.RequestHandlerClass = _Patient
    thread = Thread(target=server.serve_forever, name="simulated server", daemon=True)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
