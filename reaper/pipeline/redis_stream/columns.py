"""Turns the entries of a range into Arrow batches of the schema that was asked for."""

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from typing import Any

from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType, TimestampType

from reaper.pipeline.redis_stream.cluster import open_link
from reaper.pipeline.redis_stream.errors import RedisStreamError
from reaper.pipeline.redis_stream.link import printable, text_of
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.ranges import Entry, RangeReader, StreamRange

BATCH_BYTES = 32_000_000
TIMESTAMP = "timestamp"
"""A column of this name and type is the time in the ID of an entry."""
_LAST_MS = 253_402_300_799_999


class Layout:
    """Turns entries into Arrow batches of one schema."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._stream_column, self._id_column = options.metadata_columns
        self._of_entry = {self._stream_column, self._id_column} | ({TIMESTAMP} if _is_time(schema) else set())
        self.fields_as = options.fields_as or _guess_fields_as(schema, options)
        self._check()
        self._named = [column.name.encode() for column in self._field_columns() if not _is_map(column)]

    def _field_columns(self) -> list[StructField]:
        return [column for column in self._schema.fields if column.name not in self._of_entry]

    def _check(self) -> None:
        fields = self._field_columns()
        for column in self._schema.fields:
            if column not in fields and column.name != TIMESTAMP and not isinstance(column.dataType, StringType):
                raise RedisStreamError(f"column {column.name} must be a string, not {column.dataType.simpleString()}.")
        if self.fields_as == "columns":
            maps = [column for column in fields if _is_map(column)]
            if len(maps) > 1:
                raise RedisStreamError(f"column {maps[1].name} is a second map: one holds all fields without a column.")
            for column in fields:
                (require_text_map if column in maps else _require_text)(column)
        elif len(fields) > 1:
            raise RedisStreamError(
                f"with fieldsAs={self.fields_as} all fields go into one column, and the schema has {len(fields)}: "
                f"{', '.join(column.name for column in fields)}."
            )
        elif fields and self.fields_as == "json":
            if not isinstance(fields[0].dataType, StringType):
                raise RedisStreamError(f"with fieldsAs=json, column {fields[0].name} must be a string.")
        elif fields:
            require_text_map(fields[0])

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
                arrays.append(pa.repeat(pa.scalar(printable(stream), pa.string()), len(ids)))
            elif column.name in self._of_entry:
                arrays.append(_times(ids))
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
    of_entry = (*options.metadata_columns, *((TIMESTAMP,) if _is_time(schema) else ()))
    others = [column for column in schema.fields if column.name not in of_entry]
    return "map" if len(others) == 1 and _is_map(others[0]) else "columns"


def _is_time(schema: StructType) -> bool:
    """Tell whether `TIMESTAMP` is the time of an entry; declared as anything else, it is one of its fields."""
    return any(column.name == TIMESTAMP and isinstance(column.dataType, TimestampType) for column in schema.fields)


def _times(ids: Sequence[bytes]) -> Any:
    """Make an Arrow array of the times of IDs; of one after the year 9999, null."""
    import pyarrow as pa

    ms = (int(entry_id.partition(b"-")[0]) for entry_id in ids)
    return pa.array([1000 * each if each <= _LAST_MS else None for each in ms], pa.int64()).cast(
        pa.timestamp("us", tz="UTC")
    )


def _is_map(column: StructField) -> bool:
    return isinstance(column.dataType, MapType)


def _require_text(column: StructField) -> None:
    if not isinstance(column.dataType, (StringType, BinaryType)):
        raise RedisStreamError(
            f"column {column.name} is {column.dataType.simpleString()}: values of Redis are string or binary. "
            "Read it as string, and convert it with try_cast."
        )


def require_text_map(column: StructField) -> None:
    """Raise RedisStreamError unless the column can hold fields and their values."""
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
        return pa.array([None if value is None else text_of(value) for value in values], pa.string())


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
    entries = ({text_of(name): text_of(value) for name, value in _as_dict(flat).items()} for flat in flats)
    return pa.array([write(entry) for entry in entries], pa.string())


def read_range(part: StreamRange, options: Options, schema: StructType) -> Iterator[Any]:
    """Yield the Arrow batches of one range."""
    link = open_link(options.url, options.retry_s)
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
