"""Clients that wait for streams, in the order in which they came, and the choice of the next one to serve."""

from collections.abc import Callable

from tests.simulation.server.core import Core, Handle
from tests.simulation.server.read_commands import GROUP_GONE, KEY_GONE, NEW, Read
from tests.simulation.server.replies import NULL_ARRAY, Reply, ReplyError
from tests.simulation.server.streams import Stream


class Waiter:
    """One blocked client."""

    __slots__ = ("read", "session", "timer")

    def __init__(self, session: "Answered", read: Read, timer: Handle | None) -> None:
        self.session = session
        self.read = read
        self.timer = timer


class Answered:
    """A session that can be given the awaited answer."""

    def answer(self, reply: Reply) -> None:
        """Send the answer, and go on with the requests that came meanwhile."""
        raise NotImplementedError


class Queue:
    """All blocked clients."""

    def __init__(self, core: Core, note: Callable[[list[bytes], Reply], None]) -> None:
        """``note`` receives the handed-out entries, as the command that would do it at once, and its reply."""
        self._core = core
        self._note = note
        self._by_key: dict[bytes, dict[Waiter, None]] = {}

    def put(self, waiter: Waiter) -> None:
        """Let a client wait."""
        for key in waiter.read.keys:
            self._by_key.setdefault(key, {})[waiter] = None

    def drop(self, waiter: Waiter) -> None:
        """End its wait without an answer."""
        if waiter.timer is not None:
            waiter.timer.cancel()
        for key in waiter.read.keys:
            waiters = self._by_key.get(key)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del self._by_key[key]

    def serve(self) -> None:
        """Give what was written to those who wait for it."""
        core = self._core
        while core.ready:
            ready, core.ready = list(dict.fromkeys(core.ready)), []
            for key in ready:
                for waiter in list(self._by_key.get(key, ())):
                    self._serve_one(key, waiter)

    def _serve_one(self, key: bytes, waiter: Waiter) -> None:
        core, read = self._core, waiter.read
        try:
            stream = core.keys.typed(key, Stream)
        except ReplyError:
            return
        reply: Reply
        if stream is None:
            if read.group is None:
                return
            reply = ReplyError(KEY_GONE)
        elif read.group is not None and read.group not in stream.groups:
            reply = ReplyError(GROUP_GONE)
        else:
            after = read.after[read.keys.index(key)]
            served = read.serve(core, key, stream, NEW if read.group is not None else after)
            if served is None:
                return
            reply = [served]
            if read.group is not None:
                self._note(read.words_for(key), reply)
        self.drop(waiter)
        waiter.session.answer(reply)

    def time_out(self, waiter: Waiter) -> None:
        """Answer a client that no entry came."""
        self.drop(waiter)
        waiter.session.answer(NULL_ARRAY)
