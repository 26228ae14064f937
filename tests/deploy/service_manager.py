"""Plays systemd: a datagram socket that hears what a process tells."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until


class Ear:
    """Hears datagrams on a socket of its own."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self._listener = listener
        self.address = address
        self.heard: list[str] = []

    @property
    def lines(self) -> list[str]:
        """All lines that came so far, without those that only feed the watchdog or describe."""
        return [line for line in self._all() if not line.startswith(("WATCHDOG=", "STATUS="))]

    @property
    def states(self) -> list[str]:
        """What `systemctl status` would have shown, in turn."""
        return [line.removeprefix("STATUS=") for line in self._all() if line.startswith("STATUS=")]

    @property
    def feedings(self) -> int:
        """How often the watchdog was fed."""
        return self._all().count("WATCHDOG=1")

    async def hears(self, line: str) -> None:
        """Wait until ``line`` was told."""
        await wait_until(lambda: line in self._all(), f"systemd hears {line}")

    def _all(self) -> list[str]:
        while True:
            try:
                self.heard += self._listener.recv(65_536).decode().splitlines()
            except BlockingIOError:
                return self.heard


@contextmanager
def listening(address: str | Path) -> Iterator[Ear]:
    """Listen at a path, or (``@name``) in the abstract namespace."""
    spelt = str(address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        listener.bind("\0" + spelt[1:] if spelt.startswith("@") else spelt)
        yield Ear(listener, spelt)
