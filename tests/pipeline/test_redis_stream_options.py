"""Options, and what must never be shown."""

from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, MapType, StringType, StructType

from reaper.pipeline.redis_stream import RedisStreamError
from reaper.pipeline.redis_stream.columns import Layout
from reaper.pipeline.redis_stream.link import Link
from reaper.pipeline.redis_stream.source import RedisStreamSource, StreamReader
from reaper.pipeline.redis_stream.writing import Writer

URL = "redis://127.0.0.1:6379/0"
MAP = MapType(StringType(), StringType())
SECRET = "correct-horse"  # noqa: S105


def source(**given: str) -> RedisStreamSource:
    return RedisStreamSource({"url": URL, "stream": "jobs"} | given)


def test_names_of_options_are_in_any_case() -> None:
    assert source(MAXENTRIESPERTRIGGER="7", pagesize="9").parsed.max_entries == 7


def test_streams_are_separated_by_commas() -> None:
    assert source(stream=" a , b,,c ").parsed.streams == ("a", "b", "c")


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(RedisStreamError, match=r"no option maxentriespertriger\. Did you mean maxEntriesPerTrigger\?"):
        source(maxEntriesPerTriger="7")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pageSize", "0"),
        ("partitions", "many"),
        ("retrySeconds", "-1"),
        ("failOnDataLoss", "maybe"),
        ("startingId", "yesterday"),
        ("startingId", "18446744073709551616-0"),
        ("endingId", "1-18446744073709551616"),
        ("startingId", "\u0661-0"),
        ("fieldsAs", "xml"),
        ("maxTriggerDelay", "soon"),
        ("mode", "DROPMALFORMED"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(RedisStreamError, match=f"option {name} is '{value}'"):
        source(**{name: value})


def test_there_must_be_something_to_read() -> None:
    with pytest.raises(RedisStreamError, match="set option stream"):
        RedisStreamSource({"url": URL}).reader(StructType().add("id", "string"))


@pytest.mark.parametrize("given", [{}, {"url": URL, "urlEnv": "REDIS"}])
def test_the_url_is_given_once(given: dict[str, str]) -> None:
    with pytest.raises(RedisStreamError, match="set one of the options url, urlEnv"):
        RedisStreamSource({"stream": "jobs", **given})


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host",
        f"redis://user:{SECRET}@host:1/0",
        f"rediss://host/0?password={SECRET}",
    ],
)
def test_a_password_in_an_option_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(RedisStreamError, match="urlEnv") as caught:
        source(url=url)
    assert SECRET not in str(caught.value)


def test_a_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_URL", f"redis://:{SECRET}@host")
    options = RedisStreamSource({"urlEnv": "JOURNAL_URL", "stream": "jobs"}).parsed
    assert options.url == f"redis://:{SECRET}@host"
    assert SECRET not in repr(options)


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"redis://:{SECRET}@host\r\n", encoding="utf-8-sig")
    options = RedisStreamSource({"urlFile": str(tmp_path / "url"), "stream": "jobs"}).parsed
    assert options.url == f"redis://:{SECRET}@host"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RedisStreamError, match=f"urlFile names {tmp_path}/url, which the driver cannot read"):
        RedisStreamSource({"urlFile": str(tmp_path / "url"), "stream": "jobs"})


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOURNAL_URL", raising=False)
    with pytest.raises(RedisStreamError, match="JOURNAL_URL, which is not set"):
        RedisStreamSource({"urlEnv": "JOURNAL_URL", "stream": "jobs"})


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET}@host:{SECRET}", f"redis://:a/{SECRET}@host", f"http://:{SECRET}@host"]
)
def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(RedisStreamError) as caught:
        Link(url, 0).ask_one("PING")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# ---- schemas


def test_without_a_schema_there_are_stream_id_and_a_map() -> None:
    assert source().schema().simpleString() == "struct<stream:string,id:string,fields:map<string,string>>"


def test_without_a_schema_fields_can_be_json() -> None:
    assert source(fieldsAs="json").schema().simpleString() == "struct<stream:string,id:string,fields:string>"


def test_metadata_columns_can_be_renamed() -> None:
    schema = source(idColumn="entry", streamColumn="key").schema()
    assert schema.names == ["key", "entry", "fields"]


def test_columns_must_be_named() -> None:
    with pytest.raises(RedisStreamError, match=r"give the columns by \.schema"):
        source(fieldsAs="columns").schema()


@pytest.mark.parametrize(
    ("schema", "fields_as"),
    [
        (StructType().add("id", "string").add("n", "string"), "columns"),
        (StructType().add("id", "string").add("fields", MapType(StringType(), BinaryType())), "map"),
        (StructType().add("id", "string"), "columns"),
    ],
)
def test_the_schema_tells_how_fields_are_wanted(schema: StructType, fields_as: str) -> None:
    assert Layout(schema, source().parsed).fields_as == fields_as


@pytest.mark.parametrize(
    ("schema", "fields_as", "sentence"),
    [
        (StructType().add("n", ArrayType(StringType())), "", "column n is array<string>, which a field cannot be read"),
        (StructType().add("n", "string").add("N", "string"), "", "columns n and N differ in case only"),
        (StructType().add("id", "long"), "", "column id must be a string"),
        (StructType().add("a", "string").add("b", "string"), "json", "all fields go into one column"),
        (StructType().add("a", MapType(StringType(), IntegerType())), "map", "column a must be a map of string to"),
        (StructType().add("a", "string"), "map", "must be a map<string,string>"),
        (StructType().add("a", "binary"), "json", "must be a string"),
        (StructType().add("a", "string").add("b", MAP).add("c", MAP), "", "column c is a second map"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused(schema: StructType, fields_as: str, sentence: str) -> None:
    with pytest.raises(RedisStreamError, match=sentence):
        StreamReader(source(fieldsAs=fields_as).parsed, schema)


@pytest.mark.parametrize(
    ("data_type", "given", "sentence"),
    [
        (StringType(), {"stream": "a,b"}, "one stream, or streamColumn"),
        (StringType(), {"stream": "", "streamColumn": "to"}, "there is no such column"),
        (StringType(), {"streamColumn": "n"}, "not both"),
        (ArrayType(StringType()), {}, r"to_json\(n\)"),
        (StringType(), {"fieldsAs": "json"}, "from_json"),
        (StringType(), {"fieldsAs": "map"}, "one map of fields"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused(data_type: DataType, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(RedisStreamError, match=sentence):
        Writer(source(**given).parsed, StructType().add("n", data_type))


def test_entries_cannot_be_overwritten() -> None:
    with pytest.raises(RedisStreamError, match="append"):
        source().writer(StructType().add("n", "string"), overwrite=True)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingTimestamp": "noon"}, "startingTimestamp is 'noon'"),
        ({"startingTimestamp": "2026-11-18T11:06:40"}, "with its time zone"),
        ({"startingTimestamp": "1960-01-01T00:00:00Z"}, "since 1970"),
        ({"startingTimestamp": "5", "startingId": "5"}, "not both"),
        ({"endingTimestamp": "5", "endingId": "5"}, "not both"),
        ({"startingId": '{"jobs": "noon"}'}, "startingId of jobs is 'noon'"),
        ({"endingTimestamp": '{"jobs": "noon"}'}, "endingTimestamp of jobs is 'noon'"),
        ({"startingId": '{"jobs": '}, "startingId is no JSON object of streams"),
        ({"startingId": '{"job": "latest"}'}, "names job, which option stream does not name"),
        ({"failOnMissing": "no"}, "must be true or false"),
    ],
)
def test_where_to_begin_is_said_once_and_clearly(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(RedisStreamError, match=sentence):
        RedisStreamSource({"url": "redis://127.0.0.1", "stream": "jobs", **given})


@pytest.mark.parametrize(
    ("text", "seconds"), [("500", 0.5), ("500ms", 0.5), ("90s", 90), ("15 min", 900), ("15m", 900), ("2H", 7200)]
)
def test_times_are_written_as_spark_has_them(text: str, seconds: float) -> None:
    assert source(maxTriggerDelay=text).parsed.max_delay_s == seconds


def test_a_batch_cannot_be_larger_than_the_largest() -> None:
    with pytest.raises(RedisStreamError, match="minEntriesPerTrigger is above maxEntriesPerTrigger"):
        source(minEntriesPerTrigger="8", maxEntriesPerTrigger="7")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-18T11:06:40Z", "1795000000000"),
        ("2026-11-18T11:06:40.0001Z", "1795000000001"),
        ("2026-11-18T12:06:40+01:00", "1795000000000"),
        ("1795000000000", "1795000000000"),
    ],
)
def test_an_instant_is_the_first_id_that_is_not_before_it(text: str, ms: str) -> None:
    parsed = source(startingTimestamp=text, endingTimestamp=text).parsed
    assert (parsed.starting.of("jobs"), parsed.ending.of("jobs")) == (ms, f"({ms}")
