"""A real server and the model, each with the same connections, and the standing clock of the model."""

import re
import socket
from collections.abc import Callable, Sequence

from tests.simulation.server import ModelServer
from tests.simulation.wire import Reply, Wire, packed
from tests.support.servers import RedisServer

START_US = 1_700_000_000_000_000
CLIENTS = 3
LOOK_EVERY_S = 0.02
LISTENER = CLIENTS
"""The connection that only subscribes."""
CONTROL = CLIENTS + 1
"""The connection that looks, and changes the server."""


class StandingClock:
    """The clock of the model. It stays where it is put, and calls the due callbacks."""

    def __init__(self) -> None:
        self.us = START_US
        self._due: list[tuple[int, Call]] = []

    def now_us(self) -> int:
        """Return where it stands."""
        return self.us

    def uptime_s(self) -> int:
        """Return no relevant value."""
        return 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Call":
        """Call back where it is put so much later."""
        call = Call(callback)
        self._due.append((self.us + round(delay_s * 1e6), call))
        return call

    def stand_at(self, us: int) -> None:
        """Put it somewhere else. A server calls back in the millisecond after."""
        self.us = us
        due = sorted((row for row in self._due if row[0] < us), key=lambda row: row[0])
        self._due = [row for row in self._due if row[0] >= us]
        for _, call in due:
            call()


class Call:
    """A call that is to come."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Let it not come."""
        self._callback = None

    def __call__(self) -> None:
        if self._callback is not None:
            self._callback()


class RealSide:
    """The connections to a real server."""

    def __init__(self, server: RedisServer) -> None:
        self._address = ("127.0.0.1", server.port)
        self._sockets = [self._connected() for _ in range(CONTROL + 1)]
        self._wires = [Wire() for _ in self._sockets]
        self.ids = [self._ask(number, b"CLIENT", b"ID") for number in range(CONTROL + 1)]

    def _connected(self) -> socket.socket:
        one = socket.create_connection(self._address)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.settimeout(LOOK_EVERY_S)
        return one

    def reopen(self, number: int) -> None:
        """Connect anew."""
        self._sockets[number].close()
        self._sockets[number], self._wires[number] = self._connected(), Wire()
        self.ids[number] = self._ask(number, b"CLIENT", b"ID")

    def send(self, number: int, words: Sequence[bytes]) -> None:
        """Send one command."""
        self._sockets[number].sendall(packed(words))

    def receive(self, number: int) -> list[Reply]:
        """Wait a moment for bytes, and return the replies that they complete."""
        try:
            data = self._sockets[number].recv(1 << 20)
        except TimeoutError:
            return []
        return self._wires[number].feed(data)

    def take(self, number: int) -> list[Reply]:
        """Return what has come, without waiting."""
        self._sockets[number].setblocking(False)
        try:
            data = self._sockets[number].recv(1 << 20)
        except BlockingIOError:
            return []
        finally:
            self._sockets[number].settimeout(LOOK_EVERY_S)
        return self._wires[number].feed(data)

    def _ask(self, number: int, *words: bytes) -> Reply:
        self.send(number, words)
        while not (found := self.receive(number)):
            pass
        return found[0]

    def ask(self, *words: bytes) -> Reply:
        """Ask on the connection that looks."""
        return self._ask(CONTROL, *words)

    def is_blocked(self, number: int) -> bool:
        """Tell whether a client waits."""
        told = self.ask(b"CLIENT", b"LIST", b"ID", b"%d" % self.ids[number])
        return re.search(rb" flags=\w*b", told) is not None

    def close(self) -> None:
        """Close all connections."""
        for one in self._sockets:
            one.close()


class ModelSide:
    """The connections to the model."""

    def __init__(self, model: ModelServer) -> None:
        self.model = model
        self._wires = [Wire() for _ in range(CONTROL + 1)]
        self._replies: list[list[Reply]] = [[] for _ in self._wires]
        self.sessions = [model.connect(self._hears(number)) for number in range(CONTROL + 1)]

    def _hears(self, number: int) -> Callable[[bytes], None]:
        return lambda data: self._replies[number].extend(self._wires[number].feed(data))

    def send(self, number: int, words: Sequence[bytes]) -> None:
        """Send one command."""
        self.sessions[number].feed(packed(words))

    def take(self, number: int) -> list[Reply]:
        """Return what has come."""
        taken, self._replies[number] = self._replies[number], []
        return taken

    def reopen(self, number: int) -> None:
        """Connect anew."""
        self.sessions[number].close()
        self.sessions[number] = self.model.connect(self._hears(number))

    def ask(self, *words: bytes) -> Reply:
        """Ask on the connection that looks."""
        self.send(CONTROL, words)
        return self.take(CONTROL)[0]
