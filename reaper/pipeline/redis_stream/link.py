"""One connection to Redis that outlives outages, what it asks of streams, and how replies are read."""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from reaper.pipeline.redis_stream.connecting import Looking, connect, is_not_ready, reply_of
from reaper.pipeline.redis_stream.errors import LOG, RedisStreamError, UnreachableError
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.positions import State, parse_state
from workers.protocol.address import shown_address

LONGEST_PAUSE_S = 2.0


class Patience:
    """What is left of the time for which failures of one call are borne, from the first one on."""

    def __init__(self, url: str, retry_s: float) -> None:
        self._url, self._retry_s = url, retry_s
        self._lost_at: float | None = None
        self._pause_s = 0.05

    def wait(self, error: Exception) -> None:
        """Pause, longer each time. Raises UnreachableError when the time is over."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
            LOG.warning("no contact with %s (%s); trying for %g s", shown_address(self._url), error, self._retry_s)
        left = self._lost_at + self._retry_s - now
        if left <= 0:
            raise UnreachableError(
                f"no contact with Redis at {shown_address(self._url)} for {self._retry_s:g} s: {error}"
            )
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * random.uniform(1.5, 2.0))

    def end(self) -> None:
        """Tell that it was not in vain, if it was needed."""
        if self._lost_at is not None:
            LOG.warning(
                "contact with %s again, after %.1f s", shown_address(self._url), time.monotonic() - self._lost_at
            )


class Link:
    """One connection, made when needed and again after it was lost. What it asks only reads, so it may ask twice."""

    def __init__(self, url: str, retry_s: float) -> None:
        self._url, self._retry_s = url, retry_s
        self._connection: Any = None
        self._looking = Looking(url)
        self._started: tuple[Any, ...] | None = None
        self._works: Any = None
        """The connection that works on what was started."""

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in one go and return their replies; Redis's errors are among them.

        Tries for ``retry_s`` seconds from the first failure on. Raises UnreachableError.
        """
        patience = Patience(self._url, self._retry_s)
        while True:
            try:
                replies = self._exchange(commands)
            except contact_lost() as error:
                self._drop()
                patience.wait(error)
            else:
                not_ready = next(filter(is_not_ready, replies), None)
                if not_ready is None:
                    patience.end()
                    return replies
                self._drop()
                patience.wait(not_ready)

    def ask_one(self, *command: Any) -> Any:
        """Send one command and return its reply. Raises RedisStreamError where Redis refuses it."""
        return accepted(self.ask(command)[0], command)

    def start(self, *command: Any) -> None:
        """Send a command whose reply `finish` returns: Redis works on it meanwhile."""
        self._started = command
        try:
            connection = self._connected_for(command)
            connection.send_command(*command)
        except contact_lost():
            self._drop()
        else:
            self._works = connection

    def finish(self) -> Any:
        """Return the reply to what `start` has sent; asks again where contact was lost."""
        command, self._started = self._started, None
        connection, self._works = self._works, None
        assert command is not None, "nothing was started"
        if connection is not None:
            try:
                reply = reply_of(connection)
            except contact_lost():
                self._drop()
            else:
                if not isinstance(reply, Exception):
                    return reply
        return self.ask_one(*command)

    def find_keys(self, pattern: str) -> set[str]:
        """Return the names of the streams that match a glob. Raises as `ask_one`."""
        names: set[str] = set()
        cursor = b"0"
        while True:
            cursor, keys = self.ask_one(*scan(cursor, pattern))
            names.update(map(name_of, keys))
            if cursor == b"0":
                return names

    def close(self) -> None:
        """Close the connection."""
        self._drop()

    def write(self, packed: Sequence[bytes]) -> None:
        """Send packed commands, and again those without a reply where contact was lost: they may run twice.

        Raises RedisStreamError on the first that Redis refuses, UnreachableError.
        """
        patience = Patience(self._url, self._retry_s)
        done = 0
        while done < len(packed):
            try:
                connection = self._connected()
                connection.send_packed_command([b"".join(packed[done:])])
                for _ in range(done, len(packed)):
                    reply = reply_of(connection)
                    if isinstance(reply, Exception):
                        self._drop()
                        if not is_not_ready(reply):
                            raise RedisStreamError(f"Redis refused an XADD: {reply}")
                        patience.wait(reply)
                        break
                    done += 1
            except contact_lost() as error:
                self._drop()
                patience.wait(error)
        patience.end()

    def _exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        connection = self._connected()
        connection.send_packed_command(connection.pack_commands(commands))
        return [reply_of(connection) for _ in commands]

    def _connected_for(self, _command: Sequence[Any]) -> Any:
        return self._connected()

    def _connected(self) -> Any:
        if self._connection is not None and self._looking.leads_elsewhere(self._connection):
            self._drop()
        if self._connection is None:
            self._connection = connect(self._url)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection, self._works = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()


def scan(cursor: bytes, pattern: str) -> tuple[Any, ...]:
    """Return the command that looks for some more of the streams that match a glob."""
    return "SCAN", cursor, "MATCH", key_of(pattern), "COUNT", 1000, "TYPE", "stream"


def contact_lost() -> tuple[type[Exception], ...]:
    """Return the errors that say so: whether a command ran is unknown."""
    import redis

    return redis.ConnectionError, redis.TimeoutError, OSError


def accepted(reply: Any, command: Sequence[Any]) -> Any:
    """Return ``reply``. Raises RedisStreamError if it is an error."""
    if isinstance(reply, Exception):
        words = " ".join(text_of(word) for word in command[:2])
        raise RedisStreamError(f"Redis refused {words}: {reply}")
    return reply


def text_of(word: Any) -> str:
    r"""Return a word as text; bytes that are no UTF-8 become ``\xNN``."""
    return word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else str(word)


def key_of(stream: str) -> bytes:
    """Return the key of a stream; names that are no UTF-8 have come from `name_of`."""
    return stream.encode("utf-8", "surrogateescape")


def name_of(key: bytes) -> str:
    """Return the name of a key, which may be no UTF-8."""
    return key.decode("utf-8", "surrogateescape")


def printable(stream: str) -> str:
    """Return the name of a stream as it can be shown."""
    return text_of(key_of(stream))


def state_of(reply: Any, stream: str) -> State | None:
    """Read a reply to ``XINFO STREAM``; None where there is no such stream. Raises RedisStreamError."""
    if isinstance(reply, Exception) and "no such key" in str(reply):
        return None
    return parse_state(accepted(reply, ("XINFO STREAM", stream)))


def look_at(link: Link, streams: Sequence[str]) -> dict[str, State | None]:
    """Return the states of streams, asked for in one go."""
    if not streams:
        return {}
    replies = link.ask(*(("XINFO", "STREAM", key_of(stream)) for stream in streams))
    return {stream: state_of(reply, stream) for stream, reply in zip(streams, replies, strict=True)}


def require_there(states: Mapping[str, State | None], options: Options) -> None:
    """Raise RedisStreamError where a stream that is asked for by its name is not there, unless that is allowed."""
    missing = [stream for stream in options.streams if stream in states and states[stream] is None]
    if not missing or not options.fail_on_missing:
        return
    names = ", ".join(map(printable, missing))
    comma = (
        " Names are separated by commas: one that has a comma itself is read by streamPattern, with ? in its place."
        if len(options.streams) > 1
        else ""
    )
    raise RedisStreamError(
        f"there is no stream {names}.{comma} Option failOnMissing=false reads what is there, and waits for the rest."
    )


def find_streams(link: Link, options: Options) -> set[str]:
    """Return the streams named in the options, and those there are now that match the pattern."""
    names = set(options.streams)
    return names.union(*map(link.find_keys, options.patterns))
