"""Sends the same commands to a real server and to the model, at the same moment of a standing clock, and compares.

Both have the same connections. A blocked client has no reply. A client that a command serves has one more.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.simulation.server import ModelServer
from tests.simulation.server.streams import Stream
from tests.simulation.server.versions import KNOWN
from tests.simulation.server.words import id_text
from tests.simulation.twin_sides import CONTROL, START_US, ModelSide, RealSide, StandingClock
from tests.simulation.wire import Reply, Word, as_bytes
from tests.support.clock import ServerClock as RealClock
from tests.support.patience import PATIENCE_S, scaled
from tests.support.servers import RedisServer
from workers.protocol.scripts import Script

UNORDERED = (b"HGETALL", b"SCAN")


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
        return sorted(zip(reply[::2], reply[1::2], strict=True))
    if command == b"XINFO" and b"radix-tree-nodes" in reply:
        at = reply.index(b"radix-tree-nodes")
        return [*reply[:at], *reply[at + 2 :]]
    return reply
