"""Makes rows of table ``events``: what Spark has read of an entry is told to each of the jobs that it is about.

A batch of Arrow goes in, and one comes out: no function is called for a row, or for an entry. Runs in Spark's Python,
so only the standard library, pyarrow, pyspark, and `reaper.pipeline.lake.schema` may be imported.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from reaper.pipeline.lake.schema import EVENTS, MOST_ROWS, ROW_COLUMNS

EACH = "each_"
"""Begin of the names of columns that have a list of what an entry says of each of its jobs, or null."""
AMONG = "among"
"""Column with the places of the jobs that an entry is about; null where it is about all."""
MANY = "many"
"""Column that says whether an entry tells of many jobs."""
TABLE = "table"
"""Column that says where an entry belongs."""
_ENTRIES = f"{EACH}entry"
_ROWS_AT_ONCE = 65_536
_MOST_INT, _LEAST_INT = 2**31 - 1, -(2**31)
_MS = r"^(?P<ms>[0-9]{1,15})-"


def event_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of table ``events`` of what `reaper.pipeline.lake.events.event_facts` gives."""
    for batch in batches:
        ours = pc.equal(batch.column(TABLE), "events")
        events = batch if pc.all(ours).as_py() else batch.filter(ours)
        rows = len(pc.list_flatten(events.column(_ENTRIES)))
        entries = max(1, len(events) * _ROWS_AT_ONCE // max(1, rows))
        for first in range(0, len(events), entries):
            yield _explode(events.slice(first, entries))


def _explode(entries: pa.RecordBatch) -> pa.RecordBatch:
    schema = to_arrow_schema(EVENTS, timezone="UTC")
    if not pc.any(entries.column(MANY)).as_py():
        nothing = pa.nulls(len(entries), schema.field("row").type)
        columns = [nothing if name == "row" else entries.column(name) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    told = _Told(entries)
    return pa.RecordBatch.from_arrays([told.column(field) for field in schema], schema=schema)


class _Told:
    """Entries, and of each row which of them tells of it, and at which place."""

    def __init__(self, entries: pa.RecordBatch) -> None:
        self._entries = entries
        lists = entries.column(_ENTRIES)
        self._entry = pc.list_parent_indices(lists)
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(self._entry))
        starts = pc.subtract(lists.offsets, lists.offsets[0]).cast(pa.int64())
        self._place = pc.subtract(pc.subtract(pc.cumulative_sum(ones), 1), starts.take(self._entry))
        among = entries.column(AMONG)
        if among.null_count < len(among):
            self._keep(among)

    def _keep(self, among: pa.ListArray) -> None:
        """Leave only the rows that their entry is about."""
        places = pc.list_flatten(among)
        known = pc.and_(pc.greater_equal(places, 0), pc.less(places, MOST_ROWS))
        wanted = _numbered(pc.list_parent_indices(among).filter(known), places.filter(known))
        all_of_it = pc.is_null(among).take(self._entry)
        kept = pc.or_(all_of_it, pc.is_in(_numbered(self._entry, self._place), value_set=wanted))
        self._entry, self._place = self._entry.filter(kept), self._place.filter(kept)

    def column(self, field: pa.Field) -> pa.Array:
        """Return a column of the table: what each row has for itself, or else what its entry says of all."""
        if field.name == "row":
            many = self._entries.column(MANY).take(self._entry)
            return pc.if_else(many, self._place, None).cast(field.type)
        facts = self._of_entry(field.name)
        if field.name not in ROW_COLUMNS:
            return facts
        own = self._own(field.name)
        if field.name == "job":
            own = None if own is None else pc.if_else(pc.equal(own, ""), None, own)
            return _first(field, own, self._own("entry"), facts)
        if field.name == "enqueued_ms":
            return _first(field, own, facts, _ms_of(self._own("entry")))
        return _first(field, _cut(own) if own is not None and pa.types.is_int32(field.type) else own, facts)

    def _of_entry(self, name: str) -> pa.Array:
        facts = self._entries.column(name)
        if facts.null_count == len(facts):  # most are null in all entries
            return pa.nulls(len(self._entry), facts.type)
        return facts.take(self._entry)

    def _own(self, name: str) -> pa.Array | None:
        """Return what rows have for themselves; None where none has anything."""
        lists = self._entries.column(f"{EACH}{name}")
        if lists.null_count == len(lists):
            return None
        at = pc.add(lists.offsets.take(self._entry).cast(pa.int64()), self._place)
        if lists.null_count:
            at = pc.if_else(pc.is_valid(lists).take(self._entry), at, None)
        return lists.values.take(at)


def _numbered(entry: pa.Array, place: pa.Array) -> pa.Array:
    """Return one number for an entry and a place in it."""
    return pc.add(pc.multiply(entry.cast(pa.int64()), MOST_ROWS), place)


def _first(field: pa.Field, *choices: pa.Array | None) -> pa.Array:
    """Return of each row the first of ``choices`` that is there. The facts of the entry are always one of them."""
    given = [choice for choice in choices if choice is not None]
    telling = [choice for choice in given if choice.null_count < len(choice)]
    return pc.coalesce(*telling) if telling else pa.nulls(len(given[0]), field.type)


def _cut(value: pa.Array) -> pa.Array:
    """Return longs as ints: the largest one for what is larger, null for what is far below zero."""
    within = pc.if_else(pc.less(value, _LEAST_INT), None, pc.min_element_wise(value, _MOST_INT, skip_nulls=False))
    return within.cast(pa.int32())


def _ms_of(ids: pa.Array | None) -> pa.Array | None:
    """Return the times in IDs of entries, null for what is none."""
    return None if ids is None else pc.struct_field(pc.extract_regex(ids, _MS), "ms").cast(pa.int64())
