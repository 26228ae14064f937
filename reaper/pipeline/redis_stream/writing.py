"""Appends the rows of a table to streams, one entry a row."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import MapType, StructType

from reaper.pipeline.redis_stream import once
from reaper.pipeline.redis_stream.cluster import open_link
from reaper.pipeline.redis_stream.columns import gc_paused, require_text_map
from reaper.pipeline.redis_stream.errors import RedisStreamError
from reaper.pipeline.redis_stream.link import key_of
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.shipping import Sealed

WRITE_AT_ONCE = 1000
WRITE_BYTES = 1_000_000
"""Commands sent before their replies are read: so many, or so large in all."""


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


class Writer(Sealed):
    """Appends rows as entries.

    At least once: a task that Spark repeats, or a lost connection, adds entries again; but for rows that have a key of
    their own (``dedupeColumn``).
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        if not options.stream_column and (len(options.streams) != 1 or options.pattern):
            raise RedisStreamError(
                "to write, set option stream to one stream, or streamColumn to a column of their names."
            )
        if options.stream_column and options.streams:
            raise RedisStreamError("set option stream or option streamColumn, not both.")
        self._stream_column = _column_of("streamColumn", options.stream_column, schema, options)
        self._key_column = _column_of("dedupeColumn", options.dedupe_column, schema, options)
        self._names = [column.name for column in schema.fields if column.name != self._stream_column]
        self._map_column = self._find_map(schema)

    def _find_map(self, schema: StructType) -> str | None:
        """Return the column whose entries become the fields; None where each column becomes one."""
        options = self._options
        if options.fields_as == "json":
            raise RedisStreamError("entries are written with fieldsAs=columns or map; read JSON with from_json first.")
        columns = {column.name: column for column in schema.fields if column.name in self._names}
        maps = [name for name, column in columns.items() if isinstance(column.dataType, MapType)]
        beside = {options.fold(name) for name in columns if name not in maps}
        of_entry = {options.fold(name) for name in ("stream", options.id_column, self._key_column)}
        if options.fields_as != "columns" and len(maps) == 1 and beside <= of_entry:
            require_text_map(columns[maps[0]])
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
        link = open_link(self._options.url, self._options.retry_s)
        try:
            for batch in iterator:
                with gc_paused():
                    for commands in chunks(self._pack(batch)):
                        link.write(commands)
        finally:
            link.close()
        return WriterCommitMessage()

    def _pack(self, batch: Any) -> list[bytes]:
        streams = _bytes_of(batch.column(self._stream_column)) if self._stream_column else None
        if streams is not None and None in streams:
            raise RedisStreamError(f"column {self._stream_column} names no stream in some row.")
        if self._key_column:
            return self._pack_once(batch, streams)
        if self._map_column:
            commands = enumerate(self._entries(batch))
            return [pack_command([b"XADD", self._stream_at(at, streams), *words]) for at, words in commands]
        columns = [_bytes_of(batch.column(name)) for name in self._names]
        template = CommandTemplate(self._options, self._names)
        if not any(batch.column(name).null_count for name in self._names):
            return template.pack_all(streams, columns)
        rows = zip(*columns, strict=True)
        return [template.pack(streams[at] if streams else None, row) for at, row in enumerate(rows)]

    def _pack_once(self, batch: Any, streams: Sequence[bytes] | None) -> list[bytes]:
        keys = _bytes_of(batch.column(self._key_column))
        if None in keys:
            raise RedisStreamError(f"column {self._key_column} is null in some row: every row needs a key of its own.")
        entries = enumerate(zip(keys, self._entries(batch), strict=True))
        rows = [(self._stream_at(at, streams), key, words) for at, (key, words) in entries]
        return [pack_command(words) for words in once.calls(rows, self._options.dedupe_s)]

    def _stream_at(self, row: int, streams: Sequence[bytes] | None) -> bytes:
        return key_of(self._options.streams[0]) if streams is None else streams[row]

    def _entries(self, batch: Any) -> Iterator[list[bytes]]:
        """Yield what follows the stream's key in the ``XADD`` of each row. Raises RedisStreamError."""
        trim = _trim_words(self._options)
        if self._map_column:
            pairs = (row or () for row in batch.column(self._map_column).to_pylist())
        else:
            columns = [_bytes_of(batch.column(name)) for name in self._names]
            pairs = (zip(self._names, row, strict=True) for row in zip(*columns, strict=True))
        for row in pairs:
            words = [_encoded(word) for pair in row if pair[1] is not None for word in pair]
            if not words:
                raise RedisStreamError("a row has no fields, and an entry without fields cannot be added.")
            yield [*trim, b"*", *words]


def _column_of(option: str, name: str, schema: StructType, options: Options) -> str:
    """Return how the column is called that an option names; empty where it names none. Raises RedisStreamError."""
    if not name:
        return ""
    found = next((column for column in schema.names if options.fold(column) == options.fold(name)), None)
    if found is None:
        raise RedisStreamError(f"option {option} names {name}, and there is no such column.")
    return found


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
