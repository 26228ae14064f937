"""Simulated servers over TCP (fakeredis), the only ones with XNACK (Redis 8.8) and MAXCOUNT (8.10) that everybody can
install. They have no INFO and no cmsgpack, so they carry out no script that settles."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from fakeredis import TcpFakeServer

from tests.support.ports import free_port


class SimulatedServer:
    """A running one. `simulated_server` starts it."""

    def __init__(self, port: int, version: tuple[int, int]) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self.tcp = TcpFakeServer(("127.0.0.1", port), server_type="redis", server_version=version)

    def become(self, version: tuple[int, int]) -> None:
        """Answer as another version from now on, with the same data and connections."""
        self.tcp.fake_server.version = version


@contextmanager
def simulated_server(version: tuple[int, int] = (8, 8)) -> Iterator[SimulatedServer]:
    """Run such a server until the block ends."""
    server = SimulatedServer(free_port(), version)
    thread = Thread(target=server.tcp.serve_forever, name="simulated server", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.tcp.shutdown()
        server.tcp.server_close()
        thread.join()
