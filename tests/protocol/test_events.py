"""Lifecycle events are written and read as `docs/protocol.md` says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.protocol.events import (
    LifecycleEvent,
    decode_entry,
    encode_data,
    encode_rows,
    events_of,
    head_of_many,
)
from workers.protocol.messages import text

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(job=st.text(), data=st.dictionaries(st.text().filter(lambda name: name != "v"), json_values, max_size=5))
def test_an_event_is_read_as_it_was_written(job: str, data: dict[str, object]) -> None:
    flat = [b"event", b"acked", b"job", job.encode(), b"data", encode_data(data).encode()]
    assert decode_entry(b"1700000000001-3", flat) == [
        LifecycleEvent("1700000000001-3", 1_700_000_000_001, "acked", job, {"v": 1, **data})
    ]


def test_data_is_compact_ascii_with_its_version_first() -> None:
    assert encode_data({"group": "é", "n": 1}) == '{"v":1,"group":"\\u00e9","n":1}'


def test_bytes_that_are_no_text_do_not_hide_an_event() -> None:
    flat = [b"event", b"acked", b"job", b"\xff", b"data", b'{"v":1,"consumer":"\xff"}']
    [event] = decode_entry(b"1-1", flat)
    assert (event.job, event.data["consumer"]) == ("\\xff", "�")


@pytest.mark.parametrize(
    "flat",
    [
        [],
        [b"event", b"acked"],
        [b"event", b"acked", b"job", b"j", b"data", b"{"],
        [b"event", b"acked", b"job", b"j", b"data", b"[1]"],
        [b"event", b"\xff", b"job", b"j", b"data", b"{}"],
        [b"event", b"acked", b"job", b"j", b"data", b'{"n":NaN}'],
        [b"event", b"acked", b"job", b"j", b"data", b'{"n":[1e999]}'],
        [b"event", b"acked", b"job", b"j", b"data", b'{"n":' + b"[" * 100_000],
        [b"event", b"acked", b"job", b"j", b"data", b'{"n":' + b"1" * 10_000 + b"}"],
    ],
)
def test_an_entry_that_is_no_event_is_an_error_that_names_it(flat: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"5-0|Expecting"):
        decode_entry(b"5-0", flat)


ROWS = st.lists(
    st.fixed_dictionaries(
        {"entry": st.from_regex(r"[1-9][0-9]{3,14}-[0-9]", fullmatch=True), "enqueued_ms": st.integers(0, 2**52)},
        optional={"type": st.text(max_size=3), "begun_ms": st.integers(0, 9), "run_ms": st.integers(0, 9)},
    ),
    min_size=1,
    max_size=4,
)


def many(data: str) -> list[bytes]:
    return [b"event", b"acked", b"data", data.encode()]


@given(rows=ROWS, jobs=st.data())
def test_an_entry_that_tells_of_many_jobs_is_read_as_an_event_for_each(
    rows: list[dict[str, object]], jobs: st.DataObject
) -> None:
    names = [jobs.draw(st.none() | st.text(min_size=1, max_size=3)) for _ in rows]
    columns = {name: [row.get(name) for row in rows] for name in ("enqueued_ms", "type", "begun_ms", "run_ms")}
    entries = [str(row["entry"]).encode() for row in rows]
    data = encode_rows(head_of_many({"group": "g", "consumer": "é"}), entries, {"job": names, **columns})
    assert decode_entry(b"1700000000001-3", many(data)) == [
        LifecycleEvent(
            "1700000000001-3", 1_700_000_000_001, "acked", name or str(row["entry"]),
            {"v": 2, "group": "g", "consumer": "é", **row},
        )
        for name, row in zip(names, rows, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "names", [[b"1-0", b"2-10"], [b'1","2', b"3-0"], [b"1-0", b'"'], [b"1-0", b"\xff"], [b"1-0", None], [None, b"1-0"]]
)
def test_names_of_jobs_are_told_as_redis_has_them_whatever_they_are(names: list[bytes | None]) -> None:
    data = encode_rows(head_of_many({"group": "g"}), [b"5-0", b"5-1"], {"job": names})
    told = [event.job for event in decode_entry(b"9-0", many(data))]
    assert told == [text(name or entry) for name, entry in zip(names, (b"5-0", b"5-1"), strict=True)]


def test_what_all_jobs_have_in_common_is_written_once_and_what_the_entry_tells_not_at_all() -> None:
    data = encode_rows(head_of_many({"group": "g"}), [b"5-0", b"5-1"], {"run_ms": [7, 7], "type": [None, None]})
    assert data == '{"v":2,"group":"g","run_ms":7,"columns":{"entry":["5-0","5-1"]}}'
    told = decode_entry(b"9-0", many(data))
    assert [(event.job, event.number("enqueued_ms")) for event in told] == [("5-0", 5), ("5-1", 5)]


@pytest.mark.parametrize(("rows", "jobs"), [("[]", []), ("[2,0]", ["5-0", "5-2"]), ("[1,1,-1,9]", ["5-1"])])
def test_an_event_befell_only_the_rows_that_it_names(rows: str, jobs: list[str]) -> None:
    data = f'{{"v":2,"columns":{{"entry":["5-0","5-1","5-2"]}},"rows":{rows}}}'
    assert [event.job for event in decode_entry(b"9-0", many(data))] == jobs
    assert [event.job for event in events_of(b"9-0", many(data))] == jobs


@pytest.mark.parametrize(
    "data",
    [
        '{"v":1}',
        '{"v":3,"columns":{"entry":["5-0"]}}',
        '{"v":2}',
        '{"v":2,"columns":[]}',
        '{"v":2,"columns":{"entry":null,"run_ms":[1]}}',
        '{"v":2,"columns":{"entry":[]}}',
        '{"v":2,"columns":{"entry":"5-0"}}',
        '{"v":2,"columns":{"entry":[5]}}',
        '{"v":2,"columns":{"entry":["5-0"],"job":[5]}}',
        '{"v":2,"columns":{"entry":["5-0"],"run_ms":[1,2]}}',
        '{"v":2,"columns":{"entry":["5-0"],"run_ms":1}}',
        '{"v":2,"columns":{"entry":["5-0"]},"rows":0}',
        '{"v":2,"columns":{"entry":["5-0"]},"rows":[true]}',
        '{"v":2,"columns":{"entry":[' + ",".join(['"5-0"'] * 1_001) + "]}}",
    ],
)
def test_many_jobs_that_nobody_can_tell_apart_are_no_event(data: str) -> None:
    with pytest.raises(ValueError, match="5-0"):
        decode_entry(b"5-0", many(data))
    assert events_of(b"5-0", many(data)) == ()
