"""The surroundings of commands, which are the data, the time of the call, the caller, and the waiting clients."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tests.simulation.server.keyspace import Keyspace
from tests.simulation.server.versions import Capabilities

if TYPE_CHECKING:
    from tests.simulation.server.read_commands import Read


class Handle(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Let it not come."""


class ServerClock(Protocol):
    """The time of a server's machine."""

    def now_us(self) -> int:
        """Return the wall clock, in microseconds since the epoch."""

    def uptime_s(self) -> int:
        """Return for how long the server has run, in seconds."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Handle:
        """Call back after a while."""


class Caller(Protocol):
    """The calling session."""

    id: int
    in_transaction: bool


class Core:
    """The state of a server, as commands see it."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.is_7 = capabilities.is_7
        self.keys = Keyspace()
        self.now_us = 0
        """Stands still while a command or a script runs."""
        self.session: Caller | None = None
        self.in_script = False
        self.ready: list[bytes] = []
        """Keys that got something that a blocked client may wait for."""
        self.waiting: Read | None = None
        """Set by a read that found nothing and may block."""
        self.publish: Callable[[bytes, bytes], int] = lambda _channel, _message: 0

    @property
    def now_ms(self) -> int:
        """The time of the call."""
        return self.keys.now_ms

    def set_time(self, now_us: int) -> None:
        """Begin a call at this moment."""
        self.now_us = now_us
        self.keys.now_ms = now_us // 1000

    def signal(self, key: bytes) -> None:
        """Look at the clients that wait for a key."""
        self.ready.append(key)

    def signal_deleted(self, key: bytes) -> None:
        """Look at the clients that wait for a key that has gone."""
        if self.is_7:
            self.ready.append(key)
