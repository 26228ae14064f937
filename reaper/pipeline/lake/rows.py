"""Makes rows of table ``events``: what was read of an entry is told to each of the jobs that it is about.

A batch of Arrow goes in, and one comes out: no function is called for a row, or for an entry. Runs in Spark's Python,
so only the standard library, pyarrow, pyspark, and `reaper.pipeline.lake.schema` may be imported.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from reaper.pipeline.lake.schema import AMONG, EACH, EVENTS, MOST_INT, MOST_ROWS, ROW_COLUMNS

_ENTRIES = f"{EACH}entry"
_ROWS_AT_ONCE = 65_536
_LEAST_INT = -(2**31)
_MS = r"^(?P<ms>[0-9]{1,15})-"


EVENTS_SCHEMA = to_arrow_schema(EVENTS, timezone="UTC")


def _facts_schema() -> pa.Schema:
    rows = [field for field in EVENTS_SCHEMA if field.name != "row"]
    facts = [field.with_type(pa.int64()) if pa.types.is_int32(field.type) else field for field in rows]
    types = {field.name: field.type for field in facts}
    each = [pa.field(f"{EACH}{name}", pa.list_(types[name])) for name in ROW_COLUMNS]
    return pa.schema([*facts, *each, pa.field(AMONG, pa.list_(pa.int64()))])


FACTS_SCHEMA = _facts_schema()
"""What `event_rows` takes: what entries say of all of their jobs, and of each. Counts are longs, yet uncut.

``each_entry`` is null where an entry is of one job.
"""


def event_rows(facts: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of what entries tell, given as `FACTS_SCHEMA` says."""
    entries = facts.column(_ENTRIES)
    if entries.null_count < len(entries):
        are_many = pc.is_valid(entries)
        yield from _of_many(facts.filter(are_many))
        facts = facts.filter(pc.invert(are_many))
    if len(facts):
        nothing = pa.nulls(len(facts))
        columns = [nothing if field.name == "row" else facts.column(field.name) for field in EVENTS_SCHEMA]
        yield _as_rows(columns)


def _of_many(facts: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = len(pc.list_flatten(facts.column(_ENTRIES)))
    entries = max(1, len(facts) * _ROWS_AT_ONCE // max(1, rows))
    for first in range(0, len(facts), entries):
        told = _Told(facts.slice(first, entries))
        yield _as_rows([told.column(field.name) for field in EVENTS_SCHEMA])


def _as_rows(columns: list[pa.Array]) -> pa.RecordBatch:
    typed = [_cut(column, field.type) for column, field in zip(columns, EVENTS_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=EVENTS_SCHEMA)


def _cut(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return longs as ints: the largest one for what is larger, null for what is far below zero."""
    if values.type == kind:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), kind)
    within = pc.if_else(pc.less(values, _LEAST_INT), None, pc.min_element_wise(values, MOST_INT, skip_nulls=False))
    return within.cast(kind)


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

    def column(self, name: str) -> pa.Array:
        """Return a column of the table: what each row has for itself, or else what its entry says of all."""
        if name == "row":
            return self._place
        facts = self._of_entry(name)
        if name not in ROW_COLUMNS:
            return facts
        own = self._own(name)
        if name == "job":
            own = None if own is None else pc.if_else(pc.equal(own, ""), None, own)
            return _first(own, self._own("entry"), facts)
        if name == "enqueued_ms":
            return _first(own, facts, _ms_of(self._own("entry")))
        return _first(own, facts)

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


def _first(*choices: pa.Array | None) -> pa.Array:
    """Return of each row the first of ``choices`` that is there. The facts of the entry are always one of them."""
    given = [choice for choice in choices if choice is not None]
    telling = [choice for choice in given if choice.null_count < len(choice)]
    return pc.coalesce(*telling) if telling else given[0]


def _ms_of(ids: pa.Array | None) -> pa.Array | None:
    """Return the times in IDs of entries, null for what is none."""
    return None if ids is None else pc.struct_field(pc.extract_regex(ids, _MS), "ms").cast(pa.int64())
