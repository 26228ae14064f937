"""Turns stream entries into rows of the lake's tables: pure ``DataFrame → DataFrame`` functions.

Input is what the data source ``redis-stream`` gives for `RAW`. Everything here runs on the server under Spark Connect,
shipped by value: only the standard library, pyspark, `reaper.pipeline.lake.schema` and `rows` may be imported.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from reaper.pipeline.lake.rows import AMONG, EACH, MANY, TABLE, event_rows
from reaper.pipeline.lake.schema import DATA_COLUMNS, DEAD_LETTERS, EVENTS, MALFORMED, MOST_ROWS, ROW_COLUMNS

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

EVENT, DEAD_LETTER, MALFORMED_ENTRY = "events", "dead_letters", "malformed"
"""Values of ``table``: where a row belongs."""

VERSION, MANY_VERSION = 1, 2
"""Of the data (``v``) that is understood here: of one event, which it counts as where there is none, and of many."""
_LAST_MS = 253_402_300_799_999  # the year 9999, where dates end
_MOST_INT = 2**31 - 1
_NO_DATE = "1970-01-01"
_CORRUPT = "_corrupt"
_OF_MANY = ("columns", "rows")
_IN_COLUMNS = " + ".join(f"int(parsed.`{name}` IS NOT NULL)" for name in DATA_COLUMNS)
_OF_MANY_IN_COLUMNS = " + ".join(f"int(job IS NULL AND parsed.`{name}` IS NOT NULL)" for name in _OF_MANY)


def _as_json_type(kind: DataType) -> DataType:
    """Counts are read as long and cut: a FATAL ``XNACK`` makes 2^53 of a delivery count."""
    return LongType() if isinstance(kind, IntegerType) else kind


_ROW = {name: _as_json_type(DATA_COLUMNS.get(name, StringType())) for name in ROW_COLUMNS}
_DATA = StructType(
    [
        *(StructField(name, _as_json_type(kind)) for name, kind in DATA_COLUMNS.items()),
        StructField("columns", StructType([StructField(name, ArrayType(kind)) for name, kind in _ROW.items()])),
        StructField("rows", ArrayType(LongType())),
        StructField(_CORRUPT, StringType()),
    ]
)


def classify(raw: DataFrame) -> DataFrame:
    """Add to entries: ``table``, ``reason`` (or null), ``ms``, ``seq``, ``at``, ``date``, and ``parsed``.

    Every entry gets exactly one table, whatever it holds.
    """
    ms, seq = (F.substring_index("id", "-", part).try_cast("bigint") for part in (1, -1))
    options = {"columnNameOfCorruptRecord": _CORRUPT}
    parsed = raw.withColumns({"ms": ms, "seq": seq, "parsed": F.from_json("data", _DATA, options)})
    at = F.when(F.col("ms").between(0, _LAST_MS), F.timestamp_millis("ms"))
    table = F.when(F.col("reason").isNotNull(), MALFORMED_ENTRY).when(_is_dead_letter(), DEAD_LETTER).otherwise(EVENT)
    date = F.coalesce(at.cast("date"), F.lit(_NO_DATE).cast("date"))
    return parsed.withColumn("reason", _why_malformed()).withColumns({TABLE: table, "at": at, "date": date})


def _is_of_many() -> Column:
    return F.col("job").isNull() & F.coalesce(F.col("parsed.v") == MANY_VERSION, F.lit(False))


def _columns_fit() -> Column:
    """Tell whether the columns of an entry of many are of one length, no more than it may be, and its rows numbers."""
    entries = F.col("parsed.columns.entry")
    fits = (
        entries.isNotNull()
        & F.size(entries).between(1, MOST_ROWS)
        & ~F.exists(entries, lambda entry: entry.isNull())
        & ~F.coalesce(F.exists("parsed.rows", lambda row: row.isNull()), F.lit(False))
    )
    for name in _ROW:
        column = F.col(f"parsed.columns.{name}")
        fits &= column.isNull() | (F.size(column) == F.size(entries))
    return F.coalesce(fits, F.lit(False))


def _is_dead_letter() -> Column:
    return F.coalesce(F.map_contains_key("fields", "reaper.dead.stream"), F.lit(False))


def _why_malformed() -> Column:
    """Return the first reason why an entry is neither a lifecycle event nor a dead letter, or null."""
    is_many = _is_of_many()
    missing = [
        (is_missing, f"neither a lifecycle event nor a dead letter: it has no field {name!r}")
        for name, is_missing in (
            ("event", F.col("event").isNull()),
            ("job", F.col("job").isNull() & ~is_many),
            ("data", F.col("data").isNull()),
        )
    ]
    is_object = F.ltrim("data").startswith("{") & F.json_object_keys("data").isNotNull()
    reason = F.when(F.col("ms").isNull() | (F.col("ms") > _LAST_MS) | F.col("seq").isNull(), "its ID is no time")
    reason = reason.when(_is_dead_letter(), F.lit(None))
    for condition, text in missing:
        reason = reason.when(condition, text)
    reason = reason.when(F.col("event") == "", "event is empty")
    reason = reason.when(~F.ltrim("data").startswith("{"), "data is no JSON object")
    version = F.col("parsed.v")
    broken = F.col("parsed").isNull() | F.col(f"parsed.{_CORRUPT}").isNotNull()
    reason = reason.when(
        broken,
        F.when(is_object, "data holds a value of a wrong type").otherwise("data is no JSON object"),
    )
    reason = reason.when(is_many & ~_columns_fit(), "its columns are not of one length, or its rows no numbers")
    return reason.when(
        (version != VERSION) & ~is_many,
        F.concat(F.lit("its data is of version "), version, F.lit(f", and only {VERSION} is known")),
    )


def lifecycle_events(classified: DataFrame) -> DataFrame:
    """Return the rows of table ``events``."""
    return event_facts(classified).mapInArrow(event_rows, EVENTS)


def event_facts(classified: DataFrame) -> DataFrame:
    """Return all entries as `event_rows` takes them: with what they say of all of their jobs, and of each."""
    job = F.nullif("job", F.lit("")).alias("job")
    data = [_from_data(name, kind).alias(name) for name, kind in DATA_COLUMNS.items()]
    each = [F.col(f"parsed.columns.{name}").alias(f"{EACH}{name}") for name in ROW_COLUMNS if name != "entry"]
    itself = F.array(F.lit(None).cast("string"))
    entries = F.when(_is_of_many(), F.col("parsed.columns.entry")).otherwise(itself).alias(f"{EACH}entry")
    many = (entries, *each, F.col("parsed.rows").alias(AMONG), _is_of_many().alias(MANY))
    origin = ("id", "stream", "at", "seq", "event")
    return classified.select(*origin, job, *data, _extra().alias("extra"), "date", TABLE, *many)


def _from_data(name: str, kind: DataType) -> Column:
    value = F.col("parsed").getField(name)
    return _cut(value) if isinstance(kind, IntegerType) else value


def _cut(value: Column) -> Column:
    """Return a long as an int: the largest one for what is larger, null for what is far below zero."""
    return F.when(value > _MOST_INT, F.lit(_MOST_INT)).otherwise(value.try_cast("int"))


def _extra() -> Column:
    """Return what ``data`` holds beside the columns, or null.

    Most events have nothing, so the keys are counted first: that is quicker than parsing them again. Those with a value
    in a column are fewer where there are others (and where one is null or stands twice, which costs time only).
    """
    has_more = F.expr(f"size(json_object_keys(data)) > {_IN_COLUMNS} + {_OF_MANY_IN_COLUMNS}")
    everything = F.from_json("data", "map<string,variant>")
    is_one = F.col("job").isNotNull()
    kept = F.map_filter(everything, lambda key, _: ~key.isin(*DATA_COLUMNS) & (is_one | ~key.isin(*_OF_MANY)))
    return F.when(has_more, F.nullif(F.to_json(kept), F.lit("{}")))


def dead_letters(classified: DataFrame) -> DataFrame:
    """Return the rows of table ``dead_letters``. What is no number of ours is null."""
    rows = classified.where(F.col("table") == DEAD_LETTER)
    payload = F.map_filter(_all_fields(), lambda name, _: ~name.startswith("reaper."))
    columns = {
        "job": _reserved("job"),
        "group": _reserved("dead.group"),
        "source_stream": _reserved("dead.stream"),
        "entry": _reserved("dead.entry"),
        "reason": _reserved("dead.reason"),
        "error": _reserved("dead.error"),
        "traceback": _reserved("dead.traceback"),
        "deliveries": _count("deliveries"),
        "generation": _count("generation"),
        "consumers": _reserved("consumers"),
        "first_ms": _number("first_ms"),
        "last_ms": _number("dead.last_ms"),
        "dead_at_ms": _number("dead.at_ms"),
        "payload": payload,
    }
    named = [column.alias(name) for name, column in columns.items()]
    return rows.select("id", "stream", "at", "seq", *named, "date").select(DEAD_LETTERS.names)


def _reserved(name: str) -> Column:
    return F.nullif(F.col("fields").getItem(f"reaper.{name}"), F.lit(""))


def _number(name: str) -> Column:
    """Read a number as the protocol does: 1 to 15 digits, or it counts as absent."""
    value = _reserved(name)
    return F.when(value.rlike("^[0-9]{1,15}$"), value.cast("bigint"))


def _count(name: str) -> Column:
    return _cut(_number(name))


def malformed(classified: DataFrame) -> DataFrame:
    """Return the rows of table ``malformed``: the entry as it was, and why nobody can read it."""
    rows = classified.where(F.col("table") == MALFORMED_ENTRY)
    return rows.withColumn("raw", F.to_json(_all_fields())).select(MALFORMED.names)


def _all_fields() -> Column:
    """Return all fields of an entry: those with a column of their own, and the rest."""
    named = [part for name in ("event", "job", "data") for part in (F.lit(name), F.col(name))]
    present = F.map_filter(F.create_map(*named), lambda _, value: value.isNotNull())
    return F.map_concat(present, F.coalesce("fields", F.create_map().cast("map<string,string>")))
