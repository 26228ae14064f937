"""Values of fields as Arrow arrays of the types that a schema declares."""

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from reaper.pipeline.redis_stream.link import text_of

_READ = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)
Refuse = Callable[[int], Any]
"""Raises for the value at this place."""


def is_declarable(data_type: DataType) -> bool:
    """Tell whether a field can be read as this type."""
    return isinstance(data_type, (StringType, BinaryType, *_READ))


def array_of(values: Sequence[bytes | None], data_type: DataType, refuse: Refuse | None = None) -> Any:
    """Make an Arrow array of values; what is none of its type is null, or ``refuse`` is called with its place."""
    from pyspark.sql.pandas.types import to_arrow_type

    texts = text_array(values, binary=isinstance(data_type, BinaryType))
    if not isinstance(data_type, _READ):
        return texts
    return _read(texts, to_arrow_type(data_type, timezone="UTC"), refuse, 0)


def text_array(values: Sequence[bytes | None], binary: bool) -> Any:
    r"""Make an Arrow array of bytes or text. Bytes that are no UTF-8 become ``\xNN`` in text."""
    import pyarrow as pa

    as_bytes = pa.array(values, pa.binary())
    if binary:
        return as_bytes
    texts = as_bytes.view(pa.string())
    try:
        texts.validate(full=True)  # checks UTF-8 all at once
    except pa.ArrowInvalid:
        return pa.array([None if value is None else text_of(value) for value in values], pa.string())
    return texts


def _read(texts: Any, arrow_type: Any, refuse: Refuse | None, place: int) -> Any:
    """Read text as another type all at once; in halves where something in it cannot be read."""
    import pyarrow as pa

    try:
        return texts.cast(arrow_type)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            if refuse:
                refuse(place)
            return pa.nulls(1, arrow_type)
    half = len(texts) // 2
    return pa.concat_arrays(
        [_read(texts[:half], arrow_type, refuse, place), _read(texts[half:], arrow_type, refuse, place + half)]
    )
