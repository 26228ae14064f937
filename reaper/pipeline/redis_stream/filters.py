"""What filters of a query say about IDs, times and streams: less is read then. Pure.

Spark looks at every row again by the same filters, so that what is read may be more than they let through.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from reaper.pipeline.redis_stream.columns import Role, role_of
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.redis_stream.positions import LAST_SEQUENCE, ZERO, Id, before, parse_id

HIGHEST: Id = (LAST_SEQUENCE, LAST_SEQUENCE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_ID = re.compile(r"(0|[1-9]\d{0,19})-(0|[1-9]\d{0,19})")


@dataclass(frozen=True)
class Narrowed:
    """What can pass."""

    low: Id = ZERO
    high: Id = HIGHEST
    """The lowest and the highest ID, both included."""
    streams: frozenset[str] | None = None
    """Names as they are shown; None for all."""

    def allows(self, stream: str) -> bool:
        """Tell whether entries of a stream can pass."""
        return self.streams is None or stream in self.streams

    def between(self, low: Id, high: Id) -> "Narrowed":
        """Return what can also pass between two IDs, both included."""
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    def among(self, streams: Iterable[str]) -> "Narrowed":
        """Return what can also pass of some streams."""
        some = frozenset(streams)
        return replace(self, streams=some if self.streams is None else some & self.streams)


def narrow(filters: Iterable[Filter], schema: StructType, options: Options) -> Narrowed:
    """Return what can pass all of the filters, as far as they speak of the columns of stream, ID and time."""
    roles = {column.name: role_of(column, options) for column in schema.fields}
    found = Narrowed()
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        role = roles.get(attribute[0]) if len(attribute) == 1 else None
        if role is Role.STREAM:
            found = _by_stream(found, one)
        elif role is Role.ID:
            found = _by_id(found, one)
        elif role is Role.TIME:
            found = _by_time(found, one)
    return found


def _alternatives(one: Filter) -> list[Any] | None:
    """Return the values one of which a column must have; None where the filter says something else."""
    if isinstance(one, EqualTo | EqualNullSafe):
        return [one.value]
    return list(one.value) if isinstance(one, In) else None


def _by_stream(found: Narrowed, one: Filter) -> Narrowed:
    names = _alternatives(one)
    return found if names is None else found.among(name for name in names if isinstance(name, str))


def _by_id(found: Narrowed, one: Filter) -> Narrowed:
    """IDs are text to Spark, in whose order 10-0 is below 9-0: only which they are says something."""
    texts = _alternatives(one)
    if texts is None:
        return found
    ids = [parse_id(text) for text in texts if isinstance(text, str) and _ID.fullmatch(text)]
    return found.between(min(ids), max(ids)) if ids else found.among(())


def _by_time(found: Narrowed, one: Filter) -> Narrowed:
    instant = getattr(one, "value", None)
    if not isinstance(instant, datetime) or instant.tzinfo is None:
        return found
    since, rest = divmod(instant - _EPOCH, _MS)
    first, after = max(0, since + bool(rest)), max(0, since + 1)  # the first ms not before the instant, and after it
    if isinstance(one, EqualTo | EqualNullSafe):
        return found.between((first, 0), _below(after))
    if isinstance(one, GreaterThanOrEqual):
        return found.between((first, 0), HIGHEST)
    if isinstance(one, GreaterThan):
        return found.between((after, 0), HIGHEST)
    if isinstance(one, LessThan):
        return found.between(ZERO, _below(first))
    if isinstance(one, LessThanOrEqual):
        return found.between(ZERO, _below(after))
    return found


def _below(ms: int) -> Id:
    """Return the highest ID before a time; the lowest there is where there is none: Spark looks again."""
    return before((ms, 0)) if ms else ZERO
