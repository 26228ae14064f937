"""Turns the entries of a range into Arrow batches of the schema that was asked for."""

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from itertools import accumulate, chain
from typing import Any

from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType, TimestampType

from reaper.pipeline.redis_stream.cluster import open_link
from reaper.pipeline.redis_stream.errors import RedisStreamError
from reaper.pipeline.redis_stream.fields import Picker, as_dict, in_columns
from reaper.pipeline.redis_stream.link import printable, text_of
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.ranges import Entry, RangeReader, StreamRange
from reaper.pipeline.redis_stream.values import Refuse, array_of, is_declarable, text_array

BATCH_BYTES = 32_000_000
TIMESTAMP = "timestamp"
"""A column of this name and type is the time in the ID of an entry."""
_LAST_MS = 253_402_300_799_999


class Layout:
    """Turns entries into Arrow batches of one schema."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._roles = [role_of(column, options) for column in schema.fields]
        self._fields = [column for column, role in zip(schema.fields, self._roles, strict=True) if role is Role.FIELD]
        guess = "map" if len(self._fields) == 1 and _is_map(self._fields[0]) else "columns"
        self.fields_as = options.fields_as or guess
        self._check()
        self._picker = Picker([column.name for column in self._fields if not _is_map(column)], options)

    def _check(self) -> None:
        fields = self._fields
        names: dict[str, str] = {}
        for column, role in zip(self._schema.fields, self._roles, strict=True):
            other = names.setdefault(self._options.fold(column.name), column.name)
            if other is not column.name:
                raise RedisStreamError(
                    f"columns {other} and {column.name} differ in case only: caseSensitive=true tells them apart."
                )
            if role in (Role.STREAM, Role.ID) and not isinstance(column.dataType, StringType):
                raise RedisStreamError(f"column {column.name} must be a string, not {column.dataType.simpleString()}.")
        if self.fields_as == "columns":
            maps = [column for column in fields if _is_map(column)]
            if len(maps) > 1:
                raise RedisStreamError(f"column {maps[1].name} is a second map: one holds all fields without a column.")
            for column in fields:
                (require_text_map if column in maps else _require_declarable)(column)
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

        ids, flats = [entry_id for entry_id, _ in entries], [flat for _, flat in entries]
        fields = iter(self._field_arrays(stream, ids, flats))
        arrays = []
        for role in self._roles:
            if role is Role.ID:
                arrays.append(text_array(ids, binary=False))
            elif role is Role.STREAM:
                arrays.append(pa.repeat(pa.scalar(printable(stream), pa.string()), len(ids)))
            elif role is Role.TIME:
                arrays.append(_times(ids))
            else:
                arrays.append(next(fields))
        return arrays

    def _field_arrays(self, stream: str, ids: Sequence[bytes], flats: Sequence[list[bytes]]) -> list[Any]:
        columns = self._fields
        if self.fields_as == "columns":
            words = in_columns(flats)
            values = iter(self._picker.pick(flats, words))
            return [
                _map_array(self._picker.rest(flats, words), to.dataType)
                if _is_map(to)
                else array_of(next(values), to.dataType, self._refuse(to, stream, ids))
                for to in columns
            ]
        if not columns:
            return []
        if self.fields_as == "json":
            return [_json_array(flats)]
        return [_map_array(flats, columns[0].dataType)]

    def _refuse(self, column: StructField, stream: str, ids: Sequence[bytes]) -> Refuse | None:
        """Return what says which value is none of its type; None where such values are null."""
        if not self._options.fail_fast:
            return None

        def refuse(place: int) -> None:
            raise RedisStreamError(
                f"field {column.name} of entry {text_of(ids[place])} in stream {printable(stream)} is no "
                f"{column.dataType.simpleString()}. Option mode=PERMISSIVE makes it null."
            )

        return refuse

    def batch(self, pages: Sequence[list[Any]]) -> Any:
        """Join the columns of pages into one batch."""
        import pyarrow as pa

        joined = [pa.concat_arrays(parts) for parts in zip(*pages, strict=True)]
        return pa.RecordBatch.from_arrays(joined, schema=self.arrow_schema())


class Role(Enum):
    """What a column holds of an entry."""

    STREAM = auto()
    ID = auto()
    TIME = auto()
    FIELD = auto()


def role_of(column: StructField, options: Options) -> Role:
    """Return what a column of a schema holds."""
    name = options.fold(column.name)
    stream, entry_id = map(options.fold, options.metadata_columns)
    if name == entry_id:
        return Role.ID
    if name == stream:
        return Role.STREAM
    # Declared as anything else, it is one of the fields.
    return Role.TIME if name == TIMESTAMP and isinstance(column.dataType, TimestampType) else Role.FIELD


def _times(ids: Sequence[bytes]) -> Any:
    """Make an Arrow array of the times of IDs; of one after the year 9999, null."""
    import pyarrow as pa

    ms = (int(entry_id.partition(b"-")[0]) for entry_id in ids)
    return pa.array([1000 * each if each <= _LAST_MS else None for each in ms], pa.int64()).cast(
        pa.timestamp("us", tz="UTC")
    )


def _is_map(column: StructField) -> bool:
    return isinstance(column.dataType, MapType)


def _require_declarable(column: StructField) -> None:
    if not is_declarable(column.dataType):
        raise RedisStreamError(
            f"column {column.name} is {column.dataType.simpleString()}, which a field cannot be read as. Read it as "
            "string, and convert it in Spark (from_json, try_cast)."
        )


def require_text_map(column: StructField) -> None:
    """Raise RedisStreamError unless the column can hold fields and their values."""
    if not isinstance(column.dataType, MapType) or not isinstance(column.dataType.keyType, StringType):
        raise RedisStreamError(f"with fieldsAs=map, column {column.name} must be a map<string,string>.")
    if not isinstance(column.dataType.valueType, (StringType, BinaryType)):
        raise RedisStreamError(f"column {column.name} must be a map of string to string or binary.")


def _map_array(flats: Sequence[list[bytes]], data_type: Any) -> Any:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    names = flats[0][::2]
    if len(set(names)) == len(names) and in_columns(flats) is not None:
        keys, sizes = names * len(flats), [len(names)] * len(flats)
        values = list(chain.from_iterable(flat[1::2] for flat in flats))
    else:
        entries = [as_dict(flat) for flat in flats]
        keys, sizes = list(chain.from_iterable(entries)), [len(entry) for entry in entries]
        values = list(chain.from_iterable(entry.values() for entry in entries))
    offsets = pa.array(accumulate(sizes, initial=0), pa.int32())
    return pa.MapArray.from_arrays(
        offsets,
        text_array(keys, binary=False),
        text_array(values, isinstance(data_type.valueType, BinaryType)),
        type=to_arrow_type(data_type, timezone="UTC"),
    )


def _json_array(flats: Sequence[list[bytes]]) -> Any:
    import pyarrow as pa

    write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    entries = ({text_of(name): text_of(value) for name, value in as_dict(flat).items()} for flat in flats)
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
