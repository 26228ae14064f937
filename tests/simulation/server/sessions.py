"""A connection, as the server sees it: requests come in, replies go out in their order, and pushes in between."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import hiredis

from tests.simulation.server.blocking import Answered, Waiter
from tests.simulation.server.replies import NoReply, Reply, encode

if TYPE_CHECKING:
    from tests.simulation.server.server import ModelServer


class Session(Answered):
    """One client's connection."""

    def __init__(
        self, server: "ModelServer", number: int, send: Callable[[bytes], None], on_close: Callable[[], None]
    ) -> None:
        self.id = number
        self.in_transaction = False
        self.queued: list[list[bytes]] = []
        """The commands of a transaction that is open."""
        self.spoiled = False
        """The transaction has a command that cannot be run."""
        self.channels: dict[bytes, None] = {}
        self.waiter: Waiter | None = None
        self.closed = False
        self._server = server
        self._send = send
        self._on_close = on_close
        self._requests = hiredis.Reader()
        self._later: deque[list[bytes]] = deque()

    def feed(self, data: bytes) -> None:
        """Take requests as they come from the wire."""
        self._requests.feed(data)
        while (words := self._requests.gets()) is not False:
            self._later.append(words)
        self.go_on()

    def go_on(self) -> None:
        """Run what has come, as far as nothing blocks."""
        while self._later and self.waiter is None and not self.closed:
            words = self._later.popleft()
            reply = self._server.execute(self, words)
            if self._server.executed is not None:
                self._server.executed(words, reply)
            if not isinstance(reply, NoReply):
                self.push(reply)
            self._server.after_command()

    def push(self, reply: Reply) -> None:
        """Send something now."""
        if not self.closed:
            self._send(encode(reply))

    def answer(self, reply: Reply) -> None:
        """Send what a blocked client has waited for; what it sent meanwhile is run after the command that runs."""
        self.waiter = None
        self.push(reply)
        self._server.resume_later(self)

    def begin(self) -> None:
        """Open a transaction."""
        self.in_transaction, self.spoiled = True, False
        self.queued.clear()

    def end_transaction(self) -> list[list[bytes]]:
        """Close the transaction; return its commands."""
        queued, self.queued, self.in_transaction = self.queued, [], False
        return queued

    def hang_up(self) -> None:
        """Close the connection from the server's side."""
        if not self.closed:
            self.close()
            self._on_close()

    def close(self) -> None:
        """The connection is closed: its waits and subscriptions end."""
        if not self.closed:
            self.closed = True
            self._server.forget(self)
