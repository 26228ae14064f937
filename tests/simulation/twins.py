"""Sends the same commands to a real server and to the model, at the same moment of a standing clock, and compares.

Both have the same connections. A blocked client has no reply. A client that a command serves has one more.
"""

import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.simulation.server import ModelServer
from tests.simulation.server.streams import Stream
from tests.simulation.server.versions import KNOWN
from tests.simulation.server.words import id_text
from tests.support.clock import ServerClock as RealClock
from tests.support.patience import PATIENCE_S, scaled
from tests.support.servers import RedisServer
from workers.protocol.scripts import Script

START_US = 1_700_000_000_000_000
CLIENTS = 3
LOOK_EVERY_S = 0.02
LISTENER = CLIENTS
"""The connection that only subscribes."""
CONTROL = CLIENTS + 1
"""The connection that looks, and changes the server."""
Word = bytes | str | int
_LINE = re.compile(rb"(user_script: ?)\d+")
UNORDERED = (b"HGETALL", b"HVALS", b"HKEYS", b"SCAN")


class Simple(bytes):
    """A status, which is no bulk string."""


class Failure(bytes):
    """An error."""


NO_ARRAY = Simple(b"*-1")
Reply = Any


class Wire:
    """Takes bytes, and gives replies with their kinds."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Reply]:
        """Return the replies that are complete by now."""
        self._buffer += data
        replies, at = [], 0
        while at < len(self._buffer):
            try:
                reply, at = _parse(self._buffer, at)
            except EOFError:
                break
            replies.append(reply)
        self._buffer = self._buffer[at:]
        return replies


def _parse(data: bytes, at: int) -> tuple[Reply, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise EOFError
    kind, rest, at = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in b"+-":
        return (Simple(rest) if kind == b"+" else Failure(_LINE.sub(rb"\1#", rest))), at
    number = int(rest)
    if kind == b":":
        return number, at
    if number < 0:
        return (None if kind == b"$" else NO_ARRAY), at
    if kind == b"$":
        if len(data) < at + number + 2:
            raise EOFError
        return data[at : at + number], at + number + 2
    items = []
    for _ in range(number):
        item, at = _parse(data, at)
        items.append(item)
    return items, at


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


def packed(words: Sequence[bytes]) -> bytes:
    """Return a request as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def as_bytes(word: Word) -> bytes:
    """Return a word of a command."""
    return word if isinstance(word, bytes) else str(word).encode()


class DifferenceError(AssertionError):
    """The model is wrong."""


class Twins:
    """A real server and the model, side by side. Every method that runs something raises `DifferenceError`."""

    def __init__(self, server: RedisServer, clock: RealClock) -> None:
        self.version = next(name for name in reversed(KNOWN) if tuple(map(int, name.split("."))) <= server.version[:2])
        self.now_us = START_US
        self._clock, self._standing = clock, StandingClock()
        clock.stand_at(self.now_us)
        self.real = RealSide(server)
        self.real.ask(b"FLUSHALL")
        self.fake = ModelSide(ModelServer(version=self.version, clock=self._standing))
        self.told: list[str] = []
        self._hearing: set[int] = set()

    @contextmanager
    def _story(self) -> Iterator[None]:
        try:
            yield
        except DifferenceError as difference:
            difference.add_note("\n".join(["on " + self.version, *self.told]))
            raise

    def run(self, number: int, *words: Word) -> None:
        """Run a command on a connection of both.

        ``?n`` is the ID of an entry that is there, or pending, mostly.
        """
        plain = [self._with_entry(as_bytes(word)) for word in words]
        self._run(number, plain, plain[0].upper(), f"{number}: {b' '.join(plain)!r}")

    def _run(self, number: int, plain: list[bytes], name: bytes, told: str) -> None:
        if self.fake.sessions[number].waiter is not None:
            return  # a waiting client sends no command
        self.told.append(told[:500])
        with self._story():
            self.real.send(number, plain)
            self.fake.send(number, plain)
            self._compare(number, name)

    def _with_entry(self, word: bytes) -> bytes:
        found = re.fullmatch(rb"(\(?)\?(\d)", word)
        if found is None:
            return word
        streams = [value for value in self.fake.model.keys.values.values() if isinstance(value, Stream)]
        groups = [group for stream in streams for group in stream.groups.values()]
        known = {number for stream in streams for number in stream.entries.ids}
        known |= {number for group in groups for number in group.pending.ids}
        return found[1] + id_text(sorted(known)[int(found[2]) % len(known)] if known else START_US // 1000 << 64)

    def call(self, number: int, script: Script, keys: Sequence[str], words: Sequence[Word]) -> None:
        """Run a script on a connection of both."""
        is_there = script.digest.encode() in self.fake.model.scripts
        head = ("EVALSHA", script.digest) if is_there else ("EVAL", script.source)
        plain = [as_bytes(word) for word in (*head, len(keys), *keys, *words)]
        self._run(number, plain, script.name.encode(), f"{number}: {script.name} {' '.join(map(str, (*keys, *words)))}")

    def _compare(self, caller: int, command: bytes) -> None:
        expected = [self.fake.take(number) for number in range(CONTROL)]
        found: list[list[Reply]] = [[] for _ in expected]
        if caller < CONTROL:
            found[caller] = self._answered(caller, expected[caller])
        if caller == CONTROL or self._others_may_hear(caller):
            for _ in range(2):  # by the second, the messages of the first turn of the server's loop have come
                self.real.ask(b"PING")
            for number in range(CONTROL):
                found[number] += self.real.take(number)
        for number, replies in enumerate(found):
            _same(f"connection {number}", command, replies, expected[number])

    def _others_may_hear(self, caller: int) -> bool:
        before, self._hearing = self._hearing, {number for number in range(CONTROL) if self._hears(number)}
        return bool((before | self._hearing) - {caller})

    def _hears(self, number: int) -> bool:
        session = self.fake.sessions[number]
        return session.waiter is not None or bool(session.channels)

    def _answered(self, caller: int, expected: list[Reply]) -> list[Reply]:
        """Wait until the real server has answered, or the client waits as it should."""
        found: list[Reply] = []
        end = time.monotonic() + scaled(PATIENCE_S)
        while len(found) < len(expected) or not expected:
            came = self.real.receive(caller)
            found += came
            if (found and not expected) or (not came and self.real.is_blocked(caller)):
                break
            if time.monotonic() > end:
                raise DifferenceError(f"connection {caller}: no answer, where the model says {expected}")
        return found

    def pass_time(self, ms: int) -> None:
        """Let time pass for both. Clients that wait for less are answered."""
        self.told.append(f"{ms} ms pass")
        self.now_us += ms * 1000
        self._clock.stand_at(self.now_us)
        self._standing.stand_at(self.now_us)
        with self._story():
            self._compare(CONTROL, b"")

    def change(self, told: str, real: Sequence[Word], model: Callable[[ModelServer], None]) -> None:
        """Change the servers themselves, the real one by a command, the model by its method."""
        self.told.append(told)
        with self._story():
            self.real.ask(*map(as_bytes, real))
            model(self.fake.model)
            self._compare(CONTROL, b"")
            for number in [number for number in range(CONTROL) if self.fake.sessions[number].closed]:
                self.real.reopen(number)
                self.fake.reopen(number)

    # ---- the whole state
    def compare_state(self) -> None:
        """Look at every key of both."""
        with self._story():
            self._compare(CONTROL, b"")
            keys = sorted(self._both("SCAN", "0", "COUNT", "10000")[1])
            for key in keys:
                self._both("PTTL", key)
                self._both(*_look_at(self._both("TYPE", key), key))

    def _both(self, *words: Word) -> Reply:
        plain = [as_bytes(word) for word in words]
        found, expected = self.real.ask(*plain), self.fake.ask(*plain)
        _same(repr(b" ".join(plain)), plain[0], [found], [expected])
        return expected

    def close(self) -> None:
        """Close all connections."""
        self.real.close()


def _look_at(kind: bytes, key: bytes) -> tuple[Word, ...]:
    match kind:
        case b"stream":
            return "XINFO", "STREAM", key, "FULL", "COUNT", 0
        case b"hash":
            return "HGETALL", key
        case b"zset":
            return "ZRANGE", key, 0, -1, "WITHSCORES"
        case _:
            return "GET", key


def _same(where: str, command: bytes, found: list[Reply], expected: list[Reply]) -> None:
    found = [_comparable(command, reply) for reply in found]
    expected = [_comparable(command, reply) for reply in expected]
    if not _equal(found, expected):
        raise DifferenceError(f"{where}:\nthe server says {found}\nthe model says  {expected}")


def _equal(one: Reply, other: Reply) -> bool:
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def _comparable(command: bytes, reply: Reply) -> Reply:
    """Remove the parts that the model does not imitate, which are the order of hashes and of scans, and nodes in
    memory."""
    if not isinstance(reply, list):
        return reply
    if command in UNORDERED:
        if command == b"SCAN":
            return [reply[0], sorted(reply[1])]
        return sorted(map(repr, zip(reply[::2], reply[1::2], strict=True) if command == b"HGETALL" else reply))
    if command == b"XINFO" and b"radix-tree-nodes" in reply:
        at = reply.index(b"radix-tree-nodes")
        return [*reply[:at], *reply[at + 2 :]]
    return reply
