"""Turns stream entries into rows of the lake's tables.

Input is what the data source ``redis-stream`` gives for `RAW`. Nearly all entries are ordinary events, and Arrow reads
these, a batch at once; what it does not read is read one by one (`reaper.pipeline.lake.entries`). Runs in Spark's
Python, so only the standard library, pyarrow, pyspark, and modules of this package that keep the same rule may be
imported.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import MapType, StringType, StructField, StructType

from reaper.pipeline.lake.entries import EVENT, LAST_MS, MANY_VERSION, VERSION, read_entry
from reaper.pipeline.lake.rows import FACTS_SCHEMA, event_rows
from reaper.pipeline.lake.schema import AMONG, DATA_COLUMNS, EACH, MOST_ROWS, ROW_COLUMNS, TABLES

RAW = StructType(
    [
        StructField("stream", StringType(), nullable=False),
        StructField("id", StringType(), nullable=False),
        StructField("event", StringType()),
        StructField("job", StringType()),
        StructField("data", StringType()),
        StructField("fields", MapType(StringType(), StringType())),
    ]
)
"""Entries of all streams in one scan: the three fields of a journal entry by name, all others in ``fields``."""

FEW = 16
"""So many entries of which one is not ordinary are read one by one. Of more, each half is tried again."""

TableRows = tuple[str, pa.RecordBatch]
"""Rows, and the table they belong to."""


def read_entries(batches: Iterable[pa.RecordBatch]) -> Iterator[TableRows]:
    """Yield the rows of all entries: each entry belongs to exactly one table, whatever it holds."""
    for batch in batches:
        waiting, odd = _by_fields(batch)
        while waiting:
            entries = waiting.pop()
            facts = read_ordinary(entries)
            if facts is not None:
                yield from ((EVENT, rows) for rows in event_rows(facts))
            elif len(entries) <= FEW:
                odd.append(entries)
            else:
                half = len(entries) // 2
                waiting += [entries.slice(half), entries.slice(0, half)]
        yield from _one_by_one(odd)


def _by_fields(batch: pa.RecordBatch) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Part entries that have the fields of an event, and no others, from those that have not."""
    fields = batch.column("fields")
    no_others = pc.equal(pc.subtract(fields.offsets[1:], fields.offsets[:-1]), 0)
    ordinary = pc.and_(pc.is_valid(batch.column("data")), pc.or_(no_others, pc.is_null(fields)))
    ordinary = pc.and_(ordinary, pc.fill_null(pc.not_equal(batch.column("event"), ""), False))
    if pc.all(ordinary).as_py():
        return [batch] if len(batch) else [], []
    parts = batch.filter(ordinary), batch.filter(pc.invert(ordinary))
    return [parts[0]] if len(parts[0]) else [], [parts[1]]


# ---- entries that Arrow reads


def _line_schema() -> pa.Schema:
    types = {field.name: field.type for field in FACTS_SCHEMA}
    columns = pa.struct([(name, types[f"{EACH}{name}"]) for name in ROW_COLUMNS])
    data = [*((name, types[name]) for name in DATA_COLUMNS), ("columns", columns), ("rows", types[AMONG])]
    return pa.schema([("ms", pa.int64()), ("seq", pa.int64()), ("data", pa.struct(data))])


_LINE = _line_schema()
"""What a line of JSON may hold: both parts of an entry's ID, and its ``data``."""
_SCHEMAS = {table: to_arrow_schema(schema, timezone="UTC") for table, schema in TABLES.items()}


def read_ordinary(entries: pa.RecordBatch) -> pa.RecordBatch | None:
    """Return what entries tell, as `event_rows` takes it; None where one of them has to be read by itself.

    Each entry is made a line of JSON that begins with its ID. A line cannot end within a string, and no object can
    begin between two values. So there are as many objects as entries only if each entry is one.
    """
    parts = pc.replace_substring(entries.column("id"), "-", ',"seq":', max_replacements=1)
    lines = pc.binary_join_element_wise('{"ms":', parts, ',"data":', entries.column("data"), "}\n", "")
    text = lines.buffers()[2]
    try:
        read = pj.read_json(
            pa.BufferReader(text),
            pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            pj.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="error"),
        )
    except pa.ArrowInvalid:
        return None
    if read.num_rows != len(entries):
        return None
    ms, seq, data = (column.combine_chunks() for column in read.columns)
    told = {field.name: values for field, values in zip(data.type, data.flatten(), strict=True)}
    told |= {f"{EACH}{field.name}": values for field, values in _parts(told.pop("columns"))}
    told[AMONG] = told.pop("rows")
    known = pc.all(pc.and_(pc.is_valid(data), pc.less_equal(ms, LAST_MS))).as_py()
    if not known or not _is_told(entries.column("job"), told):
        return None
    at = pc.multiply(ms, 1000).cast(pa.timestamp("us", tz="UTC"))
    origin = {name: entries.column(name) for name in ("id", "stream", "event")}
    origin["job"] = pc.if_else(pc.equal(entries.column("job"), ""), None, entries.column("job"))
    none = {"extra": pa.nulls(len(entries), pa.string())}
    facts = origin | {"at": at, "seq": seq, "date": at.cast(pa.date32())} | told | none
    return pa.RecordBatch.from_arrays([facts[name] for name in FACTS_SCHEMA.names], schema=FACTS_SCHEMA)


def _parts(struct: pa.StructArray) -> Iterator[tuple[pa.Field, pa.Array]]:
    return zip(struct.type, struct.flatten(), strict=True)


def _is_told(job: pa.Array, told: Mapping[str, pa.Array]) -> bool:
    """Tell whether each entry is of one job, or of many in columns that fit."""
    version, among, entry = told["v"], told[AMONG], told[f"{EACH}entry"]
    each = [told[f"{EACH}{name}"] for name in ROW_COLUMNS]
    is_one = pc.is_valid(job)
    of_one = pc.fill_null(pc.equal(version, VERSION), True)
    if all(column.null_count == len(column) for column in (*each, among)):
        return bool(pc.all(pc.and_(is_one, of_one)).as_py())
    for column in (*each, among):
        of_one = pc.and_(of_one, pc.is_null(column))
    jobs = pc.list_value_length(entry)
    of_many = pc.and_(pc.equal(version, MANY_VERSION), pc.and_(pc.greater(jobs, 0), pc.less_equal(jobs, MOST_ROWS)))
    for column in each:
        of_many = pc.and_(of_many, pc.fill_null(pc.equal(pc.list_value_length(column), jobs), True))
    fits = pc.all(pc.if_else(is_one, of_one, pc.fill_null(of_many, False))).as_py()
    return fits and not any(pc.list_flatten(column).null_count for column in (entry, among))


# ---- and those that it does not


def _one_by_one(batches: Iterable[pa.RecordBatch]) -> Iterator[TableRows]:
    found: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    for batch in batches:
        for entry in batch.to_pylist():
            named = {name: entry[name] for name in ("event", "job", "data")}
            table, row = read_entry(entry["stream"], entry["id"], named, dict(entry["fields"] or ()))
            found[table].append(row)
    if found[EVENT]:
        facts = pa.RecordBatch.from_pylist(found.pop(EVENT), schema=FACTS_SCHEMA)
        yield from ((EVENT, rows) for rows in event_rows(facts))
    for table, rows in found.items():
        if rows:
            yield table, pa.RecordBatch.from_pylist(rows, schema=_SCHEMAS[table])
