"""``redis-stream``: Redis streams as a source and a sink of Spark, in batches and streaming. Useful by itself.

``register(spark)`` makes it known; ``docs/redis-stream.md`` lists the options. One module that needs nothing but
PySpark, redis-py and pyarrow: Spark ships it by value, so that executors and Spark Connect servers need not have it.

How it reads. Stream IDs only grow, so ``last-generated-id`` is a clean cut: nothing can appear below it later. A batch
is ``(start, end]`` of each stream, read with ``XRANGE`` and nothing else; nothing on the server changes.

How it notices loss. Redis trims from the head. So while the entry that was read last is still there (the *anchor*),
nothing after it can have been trimmed: each page is asked for from the anchor on, and must begin with it. Where the
anchor is gone, Redis 7 tells the number of entries that were trimmed unread: all that were ever added, without those
still there, without those already read.
"""

import difflib
import gc
import json
import logging
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

NAME = "redis-stream"
LOG = logging.getLogger(NAME)

PAGE_BYTES = 1_000_000
"""How much one ``XRANGE`` is meant to return at most: Redis serves nobody else meanwhile."""
FIRST_PAGE = 100
"""Entries of the first page, which tells how large entries are."""
BATCH_BYTES = 32_000_000
TIMEOUT_S = 10.0
"""Without a reply for this long, there is no contact."""
LONGEST_PAUSE_S = 2.0
WRITE_AT_ONCE = 1000
WRITE_BYTES = 1_000_000
"""Commands sent before their replies are read: so many, or so large in all."""

Id = tuple[int, int]
"""Entry ID: milliseconds and sequence number."""
ZERO: Id = (0, 0)
LAST_SEQUENCE = 2**64 - 1

Entry = list[Any]
"""As the wire has it: ``[ID, [field, value, field, value, …]]``, bytes."""


class RedisStreamError(Exception):
    """What a user can do something about: an option, a schema, a stream. The message is a sentence."""


class DataLossError(RedisStreamError):
    """Entries that were never read are gone."""


class UnreachableError(RedisStreamError):
    """No contact with Redis for longer than ``retrySeconds``."""


def register(spark: SparkSession) -> None:
    """Make ``format("redis-stream")`` known to a session, a classic one or one of Spark Connect."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(RedisStreamSource)


# ---- IDs


def parse_id(text: str) -> Id:
    """Read ``ms-seq`` or ``ms``. Raises ValueError."""
    ms, dash, seq = text.partition("-")
    return int(ms), int(seq) if dash else 0


def show_id(entry_id: Id) -> str:
    """Write an ID as Redis does."""
    return f"{entry_id[0]}-{entry_id[1]}"


def before(entry_id: Id) -> Id:
    """Return the highest ID below ``entry_id``, which is above 0-0."""
    ms, seq = entry_id
    return (ms, seq - 1) if seq else (ms - 1, LAST_SEQUENCE)


def cuts_between(after: Id, until: Id, parts: int) -> list[Id]:
    """Return at most ``parts - 1`` IDs that cut ``(after, until]`` into parts of about equal time, in order."""
    low, high = ((ms << 64) + seq for ms, seq in (after, until))
    cuts = sorted({low + (high - low) * part // parts for part in range(1, parts)} - {low})
    return [(cut >> 64, cut & LAST_SEQUENCE) for cut in cuts]


# ---- positions, states, loss


@dataclass(frozen=True)
class Position:
    """How far a stream has been read."""

    id: Id
    added: int | None = None
    """How many entries had ever been added to the stream up to ``id``, with it; None where that is not known."""
    initial: bool = False
    """Nothing has been read yet: ``id`` need not be an entry that exists."""

    @property
    def is_anchor(self) -> bool:
        """Tell whether ``id`` was an entry's, and that entry was read."""
        return not self.initial and self.id != ZERO

    def to_json(self) -> dict[str, Any]:
        """Return what goes into a checkpoint."""
        added = {} if self.added is None else {"added": self.added}
        return {"id": show_id(self.id), **added, **({"initial": True} if self.initial else {})}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Position":
        """Read what `to_json` has written."""
        return cls(parse_id(stored["id"]), stored.get("added"), bool(stored.get("initial")))


@dataclass(frozen=True)
class State:
    """What ``XINFO STREAM`` tells of a stream, at one instant."""

    last: Id
    length: int
    first: Id | None
    """The oldest entry; None where there is none."""
    added: int | None = None
    """How many entries have ever been added; None before Redis 7.0."""
    deleted: Id | None = None
    """The highest ID that XDEL has deleted (trimming does not count); None before Redis 7.0."""

    @property
    def removed(self) -> int | None:
        """How many entries have been trimmed or deleted; None before Redis 7.0."""
        return None if self.added is None else self.added - self.length

    @property
    def end(self) -> Position:
        """The position of one who has read everything."""
        return Position(self.last, self.added)


def parse_state(reply: Sequence[Any]) -> State:
    """Read the flat reply of ``XINFO STREAM``."""
    told = dict(zip(reply[::2], reply[1::2], strict=True))
    first, deleted = told[b"first-entry"], told.get(b"max-deleted-entry-id")
    return State(
        last=parse_id(told[b"last-generated-id"].decode()),
        length=told[b"length"],
        first=parse_id(first[0].decode()) if first else None,
        added=told.get(b"entries-added"),
        deleted=parse_id(deleted.decode()) if deleted else None,
    )


def find_loss(position: Position, state: State | None, *, ignore_deletes: bool = False) -> str | None:
    """Say what has been lost behind ``position``, None where nothing has. Exact where entries are counted.

    With ``ignore_deletes`` only what must have been trimmed is lost, not what XDEL may have deleted.
    """
    if position.initial and (position.added is None or state is None):
        return None  # nothing was read, and it is not known what there was
    at = show_id(position.id)
    if state is None:
        return f"it is gone (deleted, or Redis has restarted without it), and it had been read up to {at}"
    if state.last < position.id:
        return _another_stream(f"its last ID is {show_id(state.last)}, and it had been read up to {at}")
    if position.added is not None and state.added is not None:
        return _count_loss(position, position.added, state, state.added, ignore_deletes)
    return _compare_loss(position, state, ignore_deletes)


def _count_loss(position: Position, read: int, state: State, added: int, ignore_deletes: bool) -> str | None:
    at = show_id(position.id)
    other = f"{read:,} entries had been added to it up to {at}"
    if added < read:
        return _another_stream(f"{other}, and now it counts {added:,} in all")
    if state.first is not None and state.first <= position.id:
        return None  # trimming begins at the oldest entry, and has not come as far as this
    gone = added - state.length - read
    if gone < 0:
        return _another_stream(f"{other}, all of them are gone, and it counts {added - state.length:,} removed ones")
    deleted = state.deleted is not None and state.deleted > position.id
    if gone == 0 or (deleted and ignore_deletes):
        return None
    what, were = ("entry", "was") if gone == 1 else ("entries", "were")
    how = "trimmed or deleted (XDEL)" if deleted else "trimmed"
    return f"{gone:,} {what} after {at} {were} {how} before being read"


def _compare_loss(position: Position, state: State, ignore_deletes: bool) -> str | None:
    """Judge by IDs alone: whether the gap before the oldest entry held unread ones cannot be told."""
    if position.initial or position.id == ZERO or ignore_deletes or state.last == position.id:
        return None
    if state.first is not None and state.first <= position.id:
        return None
    at = show_id(position.id)
    if state.first is None:
        return f"all entries after {at} were trimmed or deleted before being read, up to {show_id(state.last)}"
    why = (
        "this Redis is older than 7.0 and does not count the entries added"
        if state.added is None
        else "entries were deleted (XDEL) around the end of a limited batch"
    )
    return (
        f"entries after {at} may have been trimmed before being read: {at} is gone, and the oldest entry left is "
        f"{show_id(state.first)}. Only IDs can be compared, so neither the number nor whether there were any can be "
        f"told ({why})"
    )


def _another_stream(why: str) -> str:
    return f"{why}: it was deleted and created anew, or a failover or restart has lost its end"


def added_at_cut(position: Position, state: State, walked: int) -> int | None:
    """Return how many entries had been added up to the ``walked``-th one after ``position``; None if that is not exact.

    Deleted entries are counted by nobody: one between the two makes the sum too small.
    """
    if state.removed is None:
        return None
    if state.first is not None and state.first > position.id:
        exact = state.deleted is None or state.deleted < state.first
        return state.removed + walked if exact else None
    exact = state.deleted is None or state.deleted <= position.id
    return position.added + walked if exact and position.added is not None else None


def initial_position(starting: str, state: State | None) -> Position:
    """Return where a stream that has never been read begins: ``earliest``, ``latest``, or an ID (``(ID``: after it)."""
    if state is None:
        return Position(ZERO, 0, initial=True)
    if starting == "latest":
        return replace(state.end, initial=True)
    position = ZERO if starting == "earliest" else exclusive_id(starting)
    if position == state.last:
        return replace(state.end, initial=True)
    nothing_before = state.first is None or state.first > position
    return Position(position, state.removed if nothing_before and position < state.last else None, initial=True)


def exclusive_id(bound: str) -> Id:
    """Return the ID after which to read, for a lower bound as XRANGE has it: ``ID``, or ``(ID`` for "not that one"."""
    entry_id = parse_id(bound.removeprefix("("))
    return entry_id if bound.startswith("(") or entry_id == ZERO else before(entry_id)


# ---- options

_OPTIONS: Mapping[str, str] = {
    "url": "",
    "urlEnv": "",
    "urlFile": "",
    "stream": "",
    "streamPattern": "",
    "startingId": "earliest",
    "endingId": "latest",
    "maxEntriesPerTrigger": "",
    "partitions": "1",
    "pageSize": "1000",
    "batchSize": "10000",
    "failOnDataLoss": "true",
    "ignoreDeletes": "false",
    "fieldsAs": "",
    "idColumn": "id",
    "streamColumn": "",
    "retrySeconds": "300",
    "discoverSeconds": "10",
    "maxlen": "",
    "approximate": "true",
}
_SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode", "numrows", "truncate"}
_FIELDS_AS = ("columns", "map", "json")


@dataclass(frozen=True)
class Options:
    """What the user has set, read and checked."""

    url: str = field(repr=False)
    streams: tuple[str, ...]
    pattern: str
    starting: str
    ending: str
    max_entries: int | None
    partitions: int
    page_size: int
    batch_size: int
    fail_on_data_loss: bool
    ignore_deletes: bool
    fields_as: str
    id_column: str
    stream_column: str
    retry_s: float
    discover_s: float
    maxlen: int | None
    approximate: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Read options, whose names are in lower case. Raises RedisStreamError, which never quotes ``url``."""
        _refuse_unknown(given)
        values = {name: str(given.get(name.lower(), default)).strip() for name, default in _OPTIONS.items()}
        if values["fieldsAs"] not in ("", *_FIELDS_AS):
            raise RedisStreamError(
                f"option fieldsAs is {values['fieldsAs']!r}: it must be one of {', '.join(_FIELDS_AS)}."
            )
        return cls(
            url=_find_url(values["url"], values["urlEnv"], values["urlFile"]),
            streams=tuple(name.strip() for name in values["stream"].split(",") if name.strip()),
            pattern=values["streamPattern"],
            starting=_bound("startingId", values["startingId"]),
            ending=_bound("endingId", values["endingId"]),
            max_entries=_number("maxEntriesPerTrigger", values["maxEntriesPerTrigger"]),
            partitions=_number("partitions", values["partitions"]) or 1,
            page_size=_number("pageSize", values["pageSize"]) or 1,
            batch_size=_number("batchSize", values["batchSize"]) or 1,
            fail_on_data_loss=_flag("failOnDataLoss", values["failOnDataLoss"]),
            ignore_deletes=_flag("ignoreDeletes", values["ignoreDeletes"]),
            fields_as=values["fieldsAs"],
            id_column=values["idColumn"],
            stream_column=values["streamColumn"],
            retry_s=_seconds("retrySeconds", values["retrySeconds"]),
            discover_s=_seconds("discoverSeconds", values["discoverSeconds"]),
            maxlen=_number("maxlen", values["maxlen"]),
            approximate=_flag("approximate", values["approximate"]),
        )

    @property
    def metadata_columns(self) -> tuple[str, str]:
        """The names of the columns of stream and ID when reading."""
        return self.stream_column or "stream", self.id_column

    @property
    def patterns(self) -> tuple[str, ...]:
        """The globs of ``streamPattern``, which are separated by commas."""
        return tuple(part.strip() for part in self.pattern.split(",") if part.strip())

    def require_streams(self) -> None:
        """Raise RedisStreamError if there is nothing to read from."""
        if not self.streams and not self.pattern:
            raise RedisStreamError("set option stream (names, separated by commas) or streamPattern.")


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OPTIONS}
    for name in given:
        if name.lower() not in known and name.lower() not in _SPARKS_OWN:
            close = difflib.get_close_matches(name.lower(), known, 1)
            hint = f" Did you mean {known[close[0]]}?" if close else " Streams are named by the option stream."
            raise RedisStreamError(f"{NAME} has no option {name}.{hint}")


def _find_url(url: str, variable: str, file: str) -> str:
    """Return the URL. Passwords come from the driver's environment or files: Spark shows options in plans and logs."""
    if len([given for given in (url, variable, file) if given]) != 1:
        raise RedisStreamError(
            "set one of the options url, urlEnv (the environment variable that holds the URL) and urlFile (the file)."
        )
    if variable:
        return _found(
            os.environ.get(variable), f"urlEnv names {variable}, which is not set in the driver's environment"
        )
    if file:
        return _found(_first_line(file), f"urlFile names {file}, which the driver cannot read, or which is empty")
    if _holds_password(url):
        raise RedisStreamError(
            "option url holds a password, and Spark may show options. Put the URL into an environment variable or a "
            "file of the driver, and name that by option urlEnv or urlFile."
        )
    return url


def _found(url: str | None, otherwise: str) -> str:
    if not url:
        raise RedisStreamError(f"option {otherwise}.")
    return url


def _first_line(file: str) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return None


def _holds_password(url: str) -> bool:
    """Tell whether there is one, also in a URL that is written wrongly (``/`` or ``@`` in a password as it is)."""
    user, at, _ = url.partition("://")[2].rpartition("@")
    return bool(at and ":" in user) or "password" in parse_qs(urlsplit(url).query)


def shown(url: str) -> str:
    """Return where a URL leads, without user and password."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _number(name: str, text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[1-9]\d*", text):
        raise RedisStreamError(f"option {name} is {text!r}: it must be a whole number above 0.")
    return int(text)


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise RedisStreamError(f"option {name} is {text!r}: it must be a number of seconds.")
    return float(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RedisStreamError(f"option {name} is {text!r}: it must be true or false.")
    return text.lower() == "true"


def _bound(name: str, text: str) -> str:
    if text not in ("earliest", "latest") and not re.fullmatch(r"\(?\d+(-\d+)?", text):
        raise RedisStreamError(f"option {name} is {text!r}: it must be earliest, latest or an entry ID.")
    return text


# ---- talking to Redis


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
            LOG.warning("no contact with %s (%s); trying for %g s", shown(self._url), error, self._retry_s)
        left = self._lost_at + self._retry_s - now
        if left <= 0:
            raise UnreachableError(f"no contact with Redis at {shown(self._url)} for {self._retry_s:g} s: {error}")
        time.sleep(min(self._pause_s, left))
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * random.uniform(1.5, 2.0))

    def end(self) -> None:
        """Tell that it was not in vain, if it was needed."""
        if self._lost_at is not None:
            LOG.warning("contact with %s again, after %.1f s", shown(self._url), time.monotonic() - self._lost_at)


class Link:
    """One connection, made when needed and again after it was lost. What it asks only reads, so it may ask twice."""

    def __init__(self, url: str, retry_s: float) -> None:
        self._url, self._retry_s = url, retry_s
        self._connection: Any = None
        self._started: tuple[Any, ...] | None = None

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in one go and return their replies; Redis's errors are among them.

        Tries for ``retry_s`` seconds from the first failure on. Raises UnreachableError.
        """
        patience = Patience(self._url, self._retry_s)
        while True:
            try:
                replies = self._exchange(commands)
            except _contact_lost() as error:
                self._drop()
                patience.wait(error)
            else:
                not_ready = next(filter(_is_not_ready, replies), None)
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
            self._connected().send_command(*command)
        except _contact_lost():
            self._drop()

    def finish(self) -> Any:
        """Return the reply to what `start` has sent; asks again where contact was lost."""
        command, self._started = self._started, None
        assert command is not None, "nothing was started"
        if self._connection is not None:
            try:
                reply = _reply_of(self._connection)
            except _contact_lost():
                self._drop()
            else:
                if not isinstance(reply, Exception):
                    return reply
        return self.ask_one(*command)

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
                    reply = _reply_of(connection)
                    if isinstance(reply, Exception):
                        self._drop()
                        if not _is_not_ready(reply):
                            raise RedisStreamError(f"Redis refused an XADD: {reply}")
                        patience.wait(reply)
                        break
                    done += 1
            except _contact_lost() as error:
                self._drop()
                patience.wait(error)
        patience.end()

    def _exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        connection = self._connected()
        connection.send_packed_command(connection.pack_commands(commands))
        return [_reply_of(connection) for _ in commands]

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = _connect(self._url)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()


def _connect(url: str) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    try:
        pool = redis.ConnectionPool.from_url(
            url,
            protocol=2,
            decode_responses=False,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except (ValueError, TypeError):  # what it says may hold a part of the password
        raise RedisStreamError(
            "the URL of Redis is none: it must be redis://[user:password@]host[:port][/database], or begin with "
            "rediss:// or unix://. (Special characters in a password must be percent-encoded.)"
        ) from None
    connection = pool.make_connection()
    try:
        connection.connect()
    except (redis.AuthenticationError, redis.ResponseError) as error:
        if _is_not_ready(error):
            raise redis.ConnectionError(str(error)) from None
        raise RedisStreamError(f"Redis at {shown(url)} does not let us in: {error}") from None
    return connection


def _reply_of(connection: Any) -> Any:
    """Return the next reply as it comes, an error of Redis as a value."""
    import redis

    try:
        return connection.read_response(disable_decoding=True)
    except (redis.ResponseError, redis.AuthenticationError) as error:
        return error


def _is_not_ready(reply: Any) -> bool:
    """Tell whether Redis says that another time, or another node, will do."""
    from redis.exceptions import ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError

    classes = (ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
    return isinstance(reply, classes) or (isinstance(reply, Exception) and str(reply).startswith(("LOADING ", "BUSY ")))


def _contact_lost() -> tuple[type[Exception], ...]:
    import redis

    return redis.ConnectionError, redis.TimeoutError, OSError


def accepted(reply: Any, command: Sequence[Any]) -> Any:
    """Return ``reply``. Raises RedisStreamError if it is an error."""
    if isinstance(reply, Exception):
        words = " ".join(_text(word) for word in command[:2])
        raise RedisStreamError(f"Redis refused {words}: {reply}")
    return reply


def _text(word: Any) -> str:
    return word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else str(word)


def key_of(stream: str) -> bytes:
    """Return the key of a stream; names that are no UTF-8 have come from `name_of`."""
    return stream.encode("utf-8", "surrogateescape")


def name_of(key: bytes) -> str:
    """Return the name of a key, which may be no UTF-8."""
    return key.decode("utf-8", "surrogateescape")


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


def find_streams(link: Link, options: Options) -> set[str]:
    """Return the streams named in the options, and those there are now that match the pattern."""
    names = set(options.streams)
    for pattern in options.patterns:
        cursor = b"0"
        while True:
            cursor, keys = link.ask_one("SCAN", cursor, "MATCH", key_of(pattern), "COUNT", 1000, "TYPE", "stream")
            names.update(map(name_of, keys))
            if cursor == b"0":
                break
    return names


# ---- ranges: what one task reads


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """The entries of one stream after one ID, up to another one. Spark pickles it."""

    stream: str
    after: Id
    until: Id
    added: int | None = None
    """As `Position.added`, at ``after``."""
    initial: bool = False
    """As `Position.initial`, at ``after``."""
    opens_with: Id | None = None
    """The oldest entry in the range when it was planned; None where ``after`` is an anchor, or nothing is known."""


def plan_ranges(
    link: Link, stream: str, start: Position, until: Id, parts: int, first: Id | None = None
) -> list[StreamRange]:
    """Cut ``(start, until]`` into at most ``parts`` ranges, at entries that exist. ``first`` is the oldest entry."""
    whole = StreamRange(stream, start.id, until, start.added, start.initial)
    after = max(start.id, before(first)) if first else start.id
    cuts = cuts_between(after, until, parts) if parts > 1 and after < until else []
    if not cuts:
        return [whole]
    key = key_of(stream)
    replies = link.ask(*(("XRANGE", key, show_id(cut), show_id(until), "COUNT", 1) for cut in cuts))
    found = [accepted(reply, ("XRANGE", key)) for reply in replies]
    opening = sorted({parse_id(entries[0][0].decode()) for entries in found if entries} - {first})
    return split(whole, opening)


def split(whole: StreamRange, opening: Sequence[Id]) -> list[StreamRange]:
    """Split a range before each of some of its entries, given in order."""
    later = [StreamRange(whole.stream, before(entry), whole.until, opens_with=entry) for entry in opening]
    ranges = [whole, *later]
    ends = [*(part.after for part in later), whole.until]
    return [replace(part, until=end) for part, end in zip(ranges, ends, strict=True)]


class RangeReader:
    """Reads one range page by page, and makes sure that nothing of it was trimmed before it was read."""

    def __init__(self, link: Link, part: StreamRange, options: Options) -> None:
        self._link, self._part, self._options = link, part, options
        self.stream, self._key = part.stream, key_of(part.stream)
        self._position = Position(part.after, part.added, part.initial)
        self._opens_with = part.opens_with
        self._page_size = min(FIRST_PAGE, options.page_size)
        self.entry_bytes = 0.0
        """How large an entry is on average, judged by a sample of the last page."""

    def pages(self) -> Iterator[list[Entry]]:
        """Yield the entries in order; no page is empty. Raises DataLossError."""
        part = self._part
        if part.after >= part.until:
            return
        self._link.start(*self._command())
        while True:
            asked = self._page_size
            entries = self._whole(self._link.finish())
            full = len(entries) >= asked
            if not entries:
                return
            self._move_to(entries)
            more = full and self._position.id < part.until
            if more:
                self._link.start(*self._command())
            yield entries
            if not more:
                return

    def _command(self) -> tuple[Any, ...]:
        """Ask for a page, from the anchor on."""
        anchor = self._opens_with or (self._position.id if self._position.is_anchor else None)
        size = self._page_size + (self._opens_with is None and anchor is not None)
        lowest = show_id(anchor) if anchor else f"({show_id(self._position.id)}"
        return "XRANGE", self._key, lowest, show_id(self._part.until), "COUNT", size

    def _whole(self, entries: list[Entry]) -> list[Entry]:
        """Return the unread entries of a page, after making sure that none is missing."""
        if self._opens_with is not None:
            proven = bool(entries) and entries[0][0] == show_id(self._opens_with).encode()
            unread = entries
        else:
            proven = self._position.is_anchor and bool(entries) and entries[0][0] == show_id(self._position.id).encode()
            unread = entries[1:] if proven else entries
        return unread if proven else self._checked()

    def _checked(self) -> list[Entry]:
        """Read the page again, together with the stream's state: the anchor is gone, or there is none."""
        lowest = show_id(self._opens_with) if self._opens_with else f"({show_id(self._position.id)}"
        page = ("XRANGE", self._key, lowest, show_id(self._part.until), "COUNT", self._page_size)
        *_, replies = self._link.ask(("MULTI",), page, ("XINFO", "STREAM", self._key), ("EXEC",))
        entries, info = accepted(replies, ("EXEC",))
        loss = self._judge(state_of(info, self._part.stream))
        if loss:
            report_loss(self._part.stream, loss, self._options)
            self._position = replace(self._position, added=None)
        return list(accepted(entries, page))

    def _judge(self, state: State | None) -> str | None:
        ignore = self._options.ignore_deletes
        if self._opens_with is not None and state is not None:
            return self._judge_opening(self._opens_with, state, ignore)
        at, after = self._position, self._part.after
        counted = at.id == after or state is None or state.deleted is None or state.deleted <= after
        loss = find_loss(at if counted else replace(at, added=None), state, ignore_deletes=ignore)
        if loss or state is None or not at.is_anchor or state.first is None or state.deleted is None:
            return loss
        if state.first < at.id and state.deleted < at.id:
            return _another_stream(f"{show_id(at.id)} had been read and is missing, although older entries are there")
        return None

    @staticmethod
    def _judge_opening(entry: Id, state: State, ignore_deletes: bool) -> str | None:
        if state.first is not None and state.first <= entry:
            return None  # deleted by itself: trimming would have taken the older ones first
        if ignore_deletes and (state.deleted is None or state.deleted >= entry):
            return None
        return f"entries from {show_id(entry)} on were trimmed before being read, after the read had begun"

    def _move_to(self, entries: list[Entry]) -> None:
        """Take note of a page: where the next one begins, and how large it may be."""
        added = self._position.added
        read = parse_id(entries[-1][0].decode())
        self._position = Position(read, None if added is None else added + len(entries))
        self._opens_with = None
        sample = entries[::64]
        self.entry_bytes = sum(len(word) for _, flat in sample for word in flat) / len(sample) + 1
        self._page_size = max(1, min(self._options.page_size, int(PAGE_BYTES / self.entry_bytes)))


_REPORTED: set[str] = set()


def report_loss(stream: str, loss: str, options: Options) -> None:
    """Raise DataLossError, or log it once if ``failOnDataLoss`` is false."""
    sentence = f"stream {_printable(stream)}: {loss}."
    if options.fail_on_data_loss:
        raise DataLossError(f"{sentence} Option failOnDataLoss=false goes on with what is there.")
    if sentence not in _REPORTED:
        _REPORTED.add(sentence)
        LOG.warning("data loss, and failOnDataLoss is false: %s", sentence)


def _printable(stream: str) -> str:
    return _text(key_of(stream))


# ---- Arrow


class Layout:
    """Turns entries into Arrow batches of one schema."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._stream_column, self._id_column = options.metadata_columns
        self.fields_as = options.fields_as or _guess_fields_as(schema, options)
        self._check()
        self._named = [column.name.encode() for column in self._field_columns() if not _is_map(column)]

    def _field_columns(self) -> list[StructField]:
        return [column for column in self._schema.fields if column.name not in (self._stream_column, self._id_column)]

    def _check(self) -> None:
        fields = self._field_columns()
        for column in self._schema.fields:
            if column not in fields and not isinstance(column.dataType, StringType):
                raise RedisStreamError(f"column {column.name} must be a string, not {column.dataType.simpleString()}.")
        if self.fields_as == "columns":
            maps = [column for column in fields if _is_map(column)]
            if len(maps) > 1:
                raise RedisStreamError(f"column {maps[1].name} is a second map: one holds all fields without a column.")
            for column in fields:
                (_require_text_map if column in maps else _require_text)(column)
        elif len(fields) > 1:
            raise RedisStreamError(
                f"with fieldsAs={self.fields_as} all fields go into one column, and the schema has {len(fields)}: "
                f"{', '.join(column.name for column in fields)}."
            )
        elif fields and self.fields_as == "json":
            if not isinstance(fields[0].dataType, StringType):
                raise RedisStreamError(f"with fieldsAs=json, column {fields[0].name} must be a string.")
        elif fields:
            _require_text_map(fields[0])

    def arrow_schema(self) -> Any:
        """Return the Arrow schema that Spark expects."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._schema, timezone="UTC")

    def columns(self, stream: str, entries: list[Entry]) -> list[Any]:
        """Return one Arrow array per column. ``entries`` is not empty."""
        import pyarrow as pa

        ids, flats = zip(*entries, strict=True)
        fields = iter(self._field_arrays(flats))
        arrays = []
        for column in self._schema.fields:
            if column.name == self._id_column:
                arrays.append(_array(ids, binary=False))
            elif column.name == self._stream_column:
                arrays.append(pa.repeat(pa.scalar(_printable(stream), pa.string()), len(ids)))
            else:
                arrays.append(next(fields))
        return arrays

    def _field_arrays(self, flats: Sequence[list[bytes]]) -> list[Any]:
        columns = self._field_columns()
        if self.fields_as == "columns":
            words = in_columns(flats)
            values = iter(pick_fields(flats, words, self._named))
            return [
                _rest_array(flats, words, self._named, to.dataType)
                if _is_map(to)
                else _array(next(values), isinstance(to.dataType, BinaryType))
                for to in columns
            ]
        if not columns:
            return []
        if self.fields_as == "json":
            return [_json_array(flats)]
        return [_map_array(flats, columns[0].dataType)]

    def batch(self, pages: Sequence[list[Any]]) -> Any:
        """Join the columns of pages into one batch."""
        import pyarrow as pa

        joined = [pa.concat_arrays(parts) for parts in zip(*pages, strict=True)]
        return pa.RecordBatch.from_arrays(joined, schema=self.arrow_schema())


def _guess_fields_as(schema: StructType, options: Options) -> str:
    others = [column for column in schema.fields if column.name not in options.metadata_columns]
    return "map" if len(others) == 1 and _is_map(others[0]) else "columns"


def _is_map(column: StructField) -> bool:
    return isinstance(column.dataType, MapType)


def _require_text(column: StructField) -> None:
    if not isinstance(column.dataType, (StringType, BinaryType)):
        raise RedisStreamError(
            f"column {column.name} is {column.dataType.simpleString()}: values of Redis are string or binary. "
            "Read it as string, and convert it with try_cast."
        )


def _require_text_map(column: StructField) -> None:
    if not isinstance(column.dataType, MapType) or not isinstance(column.dataType.keyType, StringType):
        raise RedisStreamError(f"with fieldsAs=map, column {column.name} must be a map<string,string>.")
    _require_text(StructField(f"{column.name}, in its values,", column.dataType.valueType))


def pick_fields(
    flats: Sequence[list[bytes]], words: Sequence[tuple[bytes, ...]] | None, wanted: Sequence[bytes]
) -> list[Sequence[bytes | None]]:
    """Return the values of each wanted field, entry by entry; None where an entry lacks it. ``words``: `in_columns`.

    Where an entry has several fields of one name, the last one counts.
    """
    if words is None:
        entries = [_as_dict(flat) for flat in flats]
        return [[entry.get(name) for entry in entries] for name in wanted]
    values = dict(zip(flats[0][::2], words[1::2], strict=True))
    nothing: Sequence[None] = (None,) * len(flats)
    return [values.get(name, nothing) for name in wanted]


def in_columns(flats: Sequence[list[bytes]]) -> list[tuple[bytes, ...]] | None:
    """Turn entries into columns, of names and values in turn; None where they differ in their fields.

    Entries of one stream hardly ever do, and this is several times as fast as a dict for each.
    """
    number, names = len(flats), flats[0][::2]
    if list(map(len, flats)).count(2 * len(names)) != number:
        return None
    words = list(zip(*flats, strict=True))
    same = all(column.count(name) == number for column, name in zip(words[::2], names, strict=True))
    return words if same else None


def _as_dict(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _array(values: Sequence[bytes | None], binary: bool) -> Any:
    r"""Make an Arrow array of bytes or text. Bytes that are no UTF-8 become ``\xNN`` in text."""
    import pyarrow as pa

    if binary:
        return pa.array(values, pa.binary())
    try:
        return pa.array(values, pa.binary()).cast(pa.string())  # checks UTF-8 all at once
    except pa.ArrowInvalid:
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _map_array(flats: Sequence[list[bytes]], data_type: Any) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    names = flats[0][::2]
    if len(set(names)) == len(names) and in_columns(flats) is not None:
        keys, sizes = names * len(flats), [len(names)] * len(flats)
        values = list(chain.from_iterable(flat[1::2] for flat in flats))
    else:
        entries = [_as_dict(flat) for flat in flats]
        keys, sizes = list(chain.from_iterable(entries)), [len(entry) for entry in entries]
        values = list(chain.from_iterable(entry.values() for entry in entries))
    offsets = pa.array(accumulate(sizes, initial=0), pa.int32())
    return pa.MapArray.from_arrays(
        offsets,
        _array(keys, binary=False),
        _array(values, isinstance(data_type.valueType, BinaryType)),
        type=to_arrow_type(data_type, timezone="UTC"),
    )


def _rest_array(
    flats: Sequence[list[bytes]], words: Sequence[tuple[bytes, ...]] | None, named: Sequence[bytes], data_type: Any
) -> Any:
    """Make a map of the fields that have no column of their own."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    if words is not None and set(flats[0][::2]) <= set(named):
        return pa.repeat(pa.scalar([], to_arrow_type(data_type, timezone="UTC")), len(flats))
    pairs = [[pair for pair in zip(flat[::2], flat[1::2], strict=True) if pair[0] not in named] for flat in flats]
    return _map_array([list(chain.from_iterable(rest)) for rest in pairs], data_type)


def _json_array(flats: Sequence[list[bytes]]) -> Any:
    import pyarrow as pa

    write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    return pa.array(
        [write({_text(name): _text(value) for name, value in _as_dict(flat).items()}) for flat in flats], pa.string()
    )


def read_range(part: StreamRange, options: Options, schema: StructType) -> Iterator[Any]:
    """Yield the Arrow batches of one range."""
    link = Link(options.url, options.retry_s)
    try:
        layout, reader = Layout(schema, options), RangeReader(link, part, options)
        pages = reader.pages()
        while True:
            with gc_paused():
                batch = _next_batch(reader, pages, layout, options.batch_size)
            if batch is None:
                return
            yield batch
    finally:
        link.close()


def _next_batch(reader: RangeReader, pages: Iterator[list[Entry]], layout: Layout, batch_size: int) -> Any:
    converted: list[list[Any]] = []
    rows = 0
    for page in pages:
        converted.append(layout.columns(reader.stream, page))
        rows += len(page)
        if rows >= batch_size or rows * reader.entry_bytes >= BATCH_BYTES:
            break
    return layout.batch(converted) if converted else None


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the garbage collector from walking through a page's thousands of young objects, which hold no cycles.

    Spark uses its workers again: it must be as it was at the end.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# ---- what Spark calls


class RedisStreamSource(DataSource):
    """``format("redis-stream")``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.parsed = Options.parse({name.lower(): value for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema where the user gives none."""
        options = self.parsed
        if options.fields_as == "columns":
            raise RedisStreamError("with fieldsAs=columns, give the columns by .schema(…): Redis does not know them.")
        fields = StringType() if options.fields_as == "json" else MapType(StringType(), StringType())
        stream, entry_id = options.metadata_columns
        return StructType().add(stream, StringType()).add(entry_id, StringType()).add("fields", fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return BatchReader(self.parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        return StreamReader(self.parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """Return the writer of a batch query."""
        if overwrite:
            raise RedisStreamError('entries can only be appended: write with mode("append").')
        return BatchWriter(self.parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802, ARG002
        """Return the writer of a streaming query; all output modes append."""
        return StreamWriter(self.parsed, schema)


class BatchReader(DataSourceReader):
    """Reads what streams hold when the query is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require_streams()
        Layout(schema, options)
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges of all streams."""
        link = Link(self._options.url, self._options.retry_s)
        try:
            states = look_at(link, sorted(find_streams(link, self._options)))
            ranges = [part for stream, state in states.items() if state for part in self._plan(link, stream, state)]
        finally:
            link.close()
        return ranges or [StreamRange("", ZERO, ZERO)]

    def _plan(self, link: Link, stream: str, state: State) -> list[InputPartition]:
        options = self._options
        start = initial_position(options.starting, state)
        until = state.last if options.ending == "latest" else min(state.last, _highest(options.ending))
        if start.id >= until:
            return []
        found = link.ask_one("XRANGE", key_of(stream), f"({show_id(start.id)}", show_id(until), "COUNT", 1)
        if not found:
            return []
        first = parse_id(found[0][0].decode())
        parts = most_parts(options, state.length)
        first_range, *others = plan_ranges(link, stream, start, until, parts, first)
        return [replace(first_range, opens_with=first), *others]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range."""
        assert hasattr(partition, "until")
        return read_range(partition, self._options, self._schema)  # type: ignore[arg-type]


def _highest(bound: str) -> Id:
    """Return the highest ID that ``endingId`` allows: a time alone means all of its milliseconds."""
    if bound == "earliest":
        return ZERO
    entry_id = parse_id(bound.removeprefix("("))
    if bound.startswith("("):
        return before(entry_id)
    return entry_id if "-" in bound else (entry_id[0], LAST_SEQUENCE)


def most_parts(options: Options, entries: int | None) -> int:
    """Return how many ranges are worth making of so many entries: none shorter than a page."""
    return options.partitions if entries is None else min(options.partitions, -(-max(entries, 1) // options.page_size))


Offset = dict[str, dict[str, Any]]
"""By stream: `Position.to_json`, and ``since`` where the range that ends here does not begin at the offset before."""


@dataclass(frozen=True)
class Backlog:
    """What of one stream could be read now."""

    stream: str
    start: Position
    state: State
    target: Position

    @property
    def at_most(self) -> int:
        """How many entries it can be at most."""
        if self.start.added is not None and self.target.added is not None:
            return max(0, min(self.target.added - self.start.added, self.state.length))
        return self.state.length


@dataclass(frozen=True)
class Walk:
    """How far a limit allows to go, found by walking there."""

    end: Position
    entries: int
    steps: tuple[Position, ...]
    """Where the pages of the walk ended: real entries, with their number known if that of the start is."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a streaming query. One process does the planning for as long as the query runs."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.require_streams()
        Layout(schema, options)
        self._options, self._schema = options, schema
        self._link: Link | None = None
        self._streams: set[str] = set()
        self._discovered_at: float | None = None
        self._states: dict[str, State | None] = {}
        self._planned: Offset = {}
        self._targets: dict[str, State] | None = None
        self._walks: dict[str, tuple[Position, Walk]] = {}

    # -- where Spark asks how far to go

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where to begin, by ``startingId``."""
        states = self._look({})
        return {stream: initial_position(self._options.starting, state).to_json() for stream, state in states.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxEntriesPerTrigger``."""
        limit = self._options.max_entries
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of what there is: nothing that comes later is read."""
        states = self._look({}, discover=True)
        self._targets = {stream: state for stream, state in states.items() if state is not None}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return how far the next batch goes; ``start`` where there is nothing to read. Raises DataLossError."""
        known = None if self._discovered_at is None else set(self._states)
        states = self._look(start)
        end: Offset = dict(start)
        backlogs = []
        for stream, state in states.items():
            if self._targets is not None and state is not None and stream not in self._targets:
                continue  # it came later
            entry = start.get(stream)
            position = (
                Position.from_json(entry) if entry else _appeared(state, known is not None and stream not in known)
            )
            end[stream] = entry or position.to_json()
            backlog = self._backlog(stream, position, state)
            if backlog:
                backlogs.append(backlog)
        for backlog, reached in self._admit(backlogs, getattr(limit, "max_rows", None)):
            end[backlog.stream] = _ended(backlog.start, reached)
        self._planned = {stream: end[stream] for stream in sorted(end)}
        return self._planned

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the ends of the streams, with the number of entries that are not yet planned (``behind``)."""
        ends = {stream: state.end for stream, state in sorted(self._states.items()) if state is not None}
        return {stream: {**end.to_json(), **self._behind(stream, end)} for stream, end in ends.items()} or None

    def _behind(self, stream: str, end: Position) -> dict[str, int]:
        added = self._planned.get(stream, {}).get("added")
        return {} if added is None or end.added is None else {"behind": max(0, end.added - added)}

    def _backlog(self, stream: str, position: Position, state: State | None) -> Backlog | None:
        loss = find_loss(position, state, ignore_deletes=self._options.ignore_deletes)
        if loss:
            report_loss(stream, loss, self._options)
        if state is None:
            return None
        target = state
        if self._targets is not None:
            target = min(self._targets[stream], state, key=lambda known: known.last)
        if target.last == position.id or (target.last < position.id and (position.initial or not loss)):
            return None
        return Backlog(stream, position, state, target.end)

    def _admit(self, backlogs: list[Backlog], limit: int | None) -> Iterator[tuple[Backlog, Position]]:
        """Share the limit out, small backlogs first, so that what they leave goes to the large ones."""
        self._walks = {}
        if limit is None:
            yield from ((backlog, backlog.target) for backlog in backlogs)
            return
        for waiting, backlog in zip(
            range(len(backlogs), 0, -1), sorted(backlogs, key=lambda backlog: backlog.at_most), strict=True
        ):
            share = -(-limit // waiting)
            if backlog.at_most <= share:
                limit -= backlog.at_most
                yield backlog, backlog.target
            elif share:
                walk = walk_to(self._connected(), backlog, share, self._options.page_size)
                self._walks[backlog.stream] = backlog.start, walk
                limit -= walk.entries
                yield backlog, walk.end

    # -- where Spark asks for a batch's tasks

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the ranges of a batch: the same ones, in substance, when it is planned again after a crash."""
        ranges: list[InputPartition] = []
        for stream, ended in end.items():
            begun = start.get(stream)
            if ended == begun:
                continue
            since = ended.get("since") or begun
            lower = Position.from_json(since) if since else Position(ZERO, initial=True)
            upper = Position.from_json(ended)
            if lower.id < upper.id:
                ranges += self._plan(stream, lower, upper)
        return ranges

    def _plan(self, stream: str, lower: Position, upper: Position) -> list[StreamRange]:
        counted = upper.added - lower.added if lower.added is not None and upper.added is not None else None
        parts = most_parts(self._options, counted)
        begun, walk = self._walks.get(stream, (None, None))
        if walk and begun == lower and walk.end.id == upper.id:
            return _cut_at_steps(stream, lower, walk, parts)
        if parts == 1:
            return plan_ranges(self._connected(), stream, lower, upper.id, 1)
        state = look_at(self._connected(), [stream])[stream]
        return plan_ranges(self._connected(), stream, lower, upper.id, parts, state.first if state else None)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range, in an executor."""
        return read_range(partition, self._options, self._schema)  # type: ignore[arg-type]

    def commit(self, end: Offset) -> None:
        """Do nothing: nothing on the server changes. Spark calls this a batch late, or never."""

    def stop(self) -> None:
        """Close the connection."""
        if self._link:
            self._link.close()

    # -- Redis

    def _connected(self) -> Link:
        if self._link is None:
            self._link = Link(self._options.url, self._options.retry_s)
        return self._link

    def _look(self, start: Mapping[str, Any], *, discover: bool = False) -> dict[str, State | None]:
        """Look at the streams asked for: all that there are, and all that have been read and match."""
        now = time.monotonic()
        due = self._discovered_at is None or now >= self._discovered_at + self._options.discover_s
        if discover or due:
            self._streams = find_streams(self._connected(), self._options)
            self._streams |= self._vanished(set(start) - self._streams)
            self._discovered_at = now
        self._states = look_at(self._connected(), sorted(self._streams))
        return self._states

    def _vanished(self, missing: set[str]) -> set[str]:
        """Return the streams that were read and are no more. Those that exist are merely not asked for any longer."""
        if not self._options.pattern:
            return set()
        return {stream for stream, state in look_at(self._connected(), sorted(missing)).items() if state is None}


def _appeared(state: State | None, newborn: bool) -> Position:
    """Return where a stream begins that no offset tells of: at its beginning.

    One that was not there at the last look has had no entries that could be missing; of another one, what was trimmed
    before we came is nobody's loss.
    """
    return Position(ZERO, 0, initial=True) if newborn else initial_position("earliest", state)


def _ended(start: Position, reached: Position) -> dict[str, Any]:
    """Return a stream's part of the end of a batch.

    Spark asks for the initial offset again when it repeats the very first batch, and that may be another one by then:
    so the first batch of a stream carries its own start.
    """
    return {**reached.to_json(), **({"since": start.to_json()} if start.initial else {})}


def walk_to(link: Link, backlog: Backlog, limit: int, page_size: int) -> Walk:
    """Find the ``limit``-th entry after the backlog's start, or its target if that is nearer.

    Redis cannot look it up by its number.
    """
    key, start, until = key_of(backlog.stream), backlog.start, show_id(backlog.target.id)
    at, walked = start, 0
    steps: list[Position] = []
    while walked < limit:
        size = min(page_size, limit - walked)
        entries = link.ask_one("XRANGE", key, f"({show_id(at.id)}", until, "COUNT", size)
        walked += len(entries)
        if len(entries) < size:
            return Walk(backlog.target, walked, tuple(steps))
        at = Position(parse_id(entries[-1][0].decode()), added_at_cut(start, backlog.state, walked))
        steps.append(at)
    return Walk(at, walked, tuple(steps[:-1]))


def _cut_at_steps(stream: str, lower: Position, walk: Walk, parts: int) -> list[StreamRange]:
    """Cut what was walked into parts of about equal numbers of entries."""
    steps = walk.steps
    chosen = sorted({len(steps) * part // parts for part in range(1, parts)}) if steps else []
    starts = [lower, *(steps[at] for at in chosen)]
    ends = [*(steps[at] for at in chosen), walk.end]
    return [
        StreamRange(stream, begin.id, end.id, begin.added, begin.initial)
        for begin, end in zip(starts, ends, strict=True)
    ]


# ---- writing


class CommandTemplate:
    """Packs ``XADD`` commands whose words are all known but the values: one ``%`` per command."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._trim = _trim_words(options)
        self._stream = None if options.stream_column else key_of(options.streams[0])
        self._names = [name.encode() for name in names]
        self._by_nulls: dict[tuple[bool, ...], bytes] = {}

    def pack(self, stream: bytes | None, values: Sequence[bytes | None]) -> bytes:
        """Return the command that adds one entry; None is no field. Raises RedisStreamError where none is left."""
        given = [value for value in values if value is not None]
        if not given:
            raise RedisStreamError("a row has no value at all, and an entry without fields cannot be added.")
        template = self.template(tuple(value is None for value in values))
        words = given if stream is None else [stream, *given]
        return template % tuple(part for word in words for part in (len(word), word))

    def pack_all(self, streams: Sequence[bytes] | None, columns: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Do the same for whole columns without nulls."""
        template = self.template((False,) * len(columns))
        words = columns if streams is None else [streams, *columns]
        return [
            template % row for row in zip(*(part for word in words for part in (map(len, word), word)), strict=True)
        ]

    def template(self, nulls: tuple[bool, ...]) -> bytes:
        """Return the template for rows with nulls at these places."""
        found = self._by_nulls.get(nulls)
        if found is None:
            names = [name for name, null in zip(self._names, nulls, strict=True) if not null]
            found = self._by_nulls[nulls] = self._write(names)
        return found

    def _write(self, names: Sequence[bytes]) -> bytes:
        hole: None = None
        words: list[bytes | None] = [b"XADD", self._stream, *self._trim, b"*"]
        for name in names:
            words += [name, hole]
        return b"*%d\r\n" % len(words) + b"".join(_bulk_template(word) for word in words)


def _bulk_template(word: bytes | None) -> bytes:
    if word is None:
        return b"$%d\r\n%b\r\n"
    return b"$%d\r\n%b\r\n" % (len(word), word.replace(b"%", b"%%"))


def pack_command(words: Sequence[bytes]) -> bytes:
    """Write one command as the wire has it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _trim_words(options: Options) -> tuple[bytes, ...]:
    if options.maxlen is None:
        return ()
    return b"MAXLEN", b"~" if options.approximate else b"=", b"%d" % options.maxlen


class Writer:
    """Appends rows as entries. At least once: a task that Spark repeats, or a lost connection, adds entries again."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        if not options.stream_column and (len(options.streams) != 1 or options.pattern):
            raise RedisStreamError(
                "to write, set option stream to one stream, or streamColumn to a column of their names."
            )
        if options.stream_column and options.streams:
            raise RedisStreamError("set option stream or option streamColumn, not both.")
        self._names = [column.name for column in schema.fields if column.name != options.stream_column]
        if options.stream_column and len(self._names) == len(schema.fields):
            raise RedisStreamError(f"option streamColumn names {options.stream_column}, and there is no such column.")
        self._map_column = self._find_map(schema)

    def _find_map(self, schema: StructType) -> str | None:
        """Return the column whose entries become the fields; None where each column becomes one."""
        options = self._options
        if options.fields_as == "json":
            raise RedisStreamError("entries are written with fieldsAs=columns or map; read JSON with from_json first.")
        columns = {column.name: column for column in schema.fields if column.name in self._names}
        maps = [name for name, column in columns.items() if isinstance(column.dataType, MapType)]
        if options.fields_as != "columns" and len(maps) == 1 and set(columns) <= {*maps, "stream", options.id_column}:
            _require_text_map(columns[maps[0]])
            return maps[0]
        if options.fields_as == "map":
            raise RedisStreamError("with fieldsAs=map, rows have one map of fields (besides stream and id).")
        for name, column in columns.items():
            if column.dataType.typeName() in ("array", "map", "struct", "variant", "interval"):
                raise RedisStreamError(
                    f"column {name} is {column.dataType.simpleString()}: write it as to_json({name})."
                )
        return None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Append the rows of a task's batches."""
        link = Link(self._options.url, self._options.retry_s)
        try:
            for batch in iterator:
                with gc_paused():
                    for commands in chunks(self._pack(batch)):
                        link.write(commands)
        finally:
            link.close()
        return WriterCommitMessage()

    def _pack(self, batch: Any) -> list[bytes]:
        options = self._options
        streams = _bytes_of(batch.column(options.stream_column)) if options.stream_column else None
        if streams is not None and None in streams:
            raise RedisStreamError(f"column {options.stream_column} names no stream in some row.")
        if self._map_column:
            return self._pack_maps(batch.column(self._map_column), streams)
        columns = [_bytes_of(batch.column(name)) for name in self._names]
        template = CommandTemplate(options, self._names)
        if not any(batch.column(name).null_count for name in self._names):
            return template.pack_all(streams, columns)
        rows = zip(*columns, strict=True)
        return [template.pack(streams[at] if streams else None, row) for at, row in enumerate(rows)]

    def _pack_maps(self, column: Any, streams: Sequence[bytes] | None) -> list[bytes]:
        trim = _trim_words(self._options)
        fixed = None if streams else key_of(self._options.streams[0])
        commands = []
        for at, pairs in enumerate(column.to_pylist()):
            words = [_encoded(word) for pair in pairs or () if pair[1] is not None for word in pair]
            if not words:
                raise RedisStreamError("a row has no fields, and an entry without fields cannot be added.")
            stream = fixed if streams is None else streams[at]
            commands.append(pack_command([b"XADD", stream or b"", *trim, b"*", *words]))
        return commands


def chunks(commands: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut commands into what is sent before replies are read: a number of them, and about so many bytes."""
    first, size = 0, 0
    for at, command in enumerate(commands):
        size += len(command)
        if size >= WRITE_BYTES or at - first + 1 == WRITE_AT_ONCE:
            yield commands[first : at + 1]
            first, size = at + 1, 0
    if first < len(commands):
        yield commands[first:]


def _encoded(word: str | bytes) -> bytes:
    return word.encode() if isinstance(word, str) else word


def _bytes_of(column: Any) -> list[Any]:
    """Return the values of an Arrow column as bytes; what is neither text nor bytes is written as Arrow prints it."""
    import pyarrow as pa

    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string()).cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values


class BatchWriter(Writer, DataSourceArrowWriter):
    """Writes a batch query's rows."""

    def commit(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Do nothing: entries are there as soon as they are added."""

    def abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Do nothing: what was added stays."""


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """Writes a streaming query's rows."""

    def commit(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: entries are there as soon as they are added."""

    def abort(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what was added stays."""
