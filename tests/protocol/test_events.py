"""Lifecycle events are written and read as `docs/protocol.md` says."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.protocol.events import LifecycleEvent, decode_entry, event_fields, events_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(
    job=TEXTS,
    facts=st.dictionaries(st.sampled_from(["group", "reason", "consumer"]), TEXTS),
    token=st.integers(0, 2**53),
)
def test_an_event_is_read_as_it_was_written(job: str, facts: dict[str, str], token: int) -> None:
    words = event_fields("acked", job=job, token=token, missing=None, **facts)
    assert decode_entry(b"1700000000001-3", [str(word).encode() for word in words]) == [
        LifecycleEvent("1700000000001-3", 1_700_000_000_001, "acked", job, {"token": token, **facts})
    ]


def test_bytes_that_are_no_text_do_not_hide_an_event() -> None:
    [event] = decode_entry(b"1-1", [b"event", b"acked", b"job", b"\xff", b"consumer", b"\xff"])
    assert (event.job, event.data["consumer"]) == ("\\xff", "\\xff")


@pytest.mark.parametrize("value", ["x", "1-", "1.5", "9" * 17, str(2**53 + 1), "\u0661", ""])
def test_a_number_that_is_none_is_left_out(value: str) -> None:
    [event] = decode_entry(b"1-1", [b"event", b"acked", b"token", value.encode(), b"entry", b"5-0"])
    assert event.data == {"entry": "5-0", "generation": 0, "enqueued_ms": 5}


NAMES = st.from_regex(r"[a-z0-9é]{1,3}", fullmatch=True)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"entry": st.from_regex(r"[1-9][0-9]{3,14}-[0-9]", fullmatch=True), "enqueued_ms": st.integers(0, 10**15 - 1)},
        optional={"type": NAMES, "begun_ms": st.integers(0, 9), "run_ms": st.integers(0, 9)},
    ),
    min_size=1,
    max_size=4,
)


def columns_of(rows: list[dict[str, object]], names: Sequence[str]) -> list[bytes]:
    told: list[bytes] = []
    for name in names:
        values = ["" if row.get(name) is None else str(row[name]) for row in rows]
        if any(values):
            told += (name.encode(), ",".join(values).encode())
    return told


def many(*fields: bytes, entry: bytes = b"5-0,5-1") -> list[bytes]:
    return [b"event", b"acked", b"group", b"g", b"entry", entry, *fields]


@given(rows=ROWS, jobs=st.data())
def test_an_entry_about_many_jobs_is_an_event_for_each(rows: list[dict[str, object]], jobs: st.DataObject) -> None:
    for row in rows:
        row["job"] = jobs.draw(st.none() | NAMES)
    told = columns_of(rows, ("job", "enqueued_ms", "type", "begun_ms", "run_ms"))
    entry = ",".join(str(row["entry"]) for row in rows).encode()
    events = decode_entry(b"1700000000001-3", many(b"consumer", "é".encode(), *told, entry=entry))
    for event, row in zip(events, rows, strict=True):
        known = {name: value for name, value in row.items() if name != "job"}
        assert (event.job, event.at_ms) == (row["job"] or row["entry"], 1_700_000_000_001)
        assert event.data == {"group": "g", "consumer": "é", "generation": 0, **known}


def test_what_all_jobs_have_in_common_is_written_once_and_what_the_entry_tells_not_at_all() -> None:
    told = decode_entry(b"9-0", many(b"run_ms", b"7"))
    assert [(event.job, event.number("run_ms")) for event in told] == [("5-0", 7), ("5-1", 7)]
    assert [event.number("enqueued_ms") for event in told] == [5, 5]


@pytest.mark.parametrize(("rejected", "jobs"), [(b"", []), (b"0,2", ["5-0", "5-2"]), (b"1,1,-1,9,x", ["5-1"])])
def test_rejected_rows_are_events_of_their_own(rejected: bytes, jobs: list[str]) -> None:
    told = decode_entry(b"9-0", many(b"rejected", rejected, entry=b"5-0,5-1,5-2"))
    assert [event.job for event in told if event.event == "rejected"] == jobs
    assert {event.data["verb"] for event in told if event.event == "rejected"} <= {"ack"}
    assert {event.event for event in told} <= {"acked", "rejected"}
    assert events_of(b"9-0", many(b"rejected", rejected, entry=b"5-0,5-1,5-2")) == told


@pytest.mark.parametrize(
    "flat",
    [
        many(b"run_ms", b"1,2,3"),
        many(b"job", b"a,b,c"),
        many(b"run_ms", b"1,2", entry=b"5-0"),
        many(entry=b",".join([b"5-0"] * 1_001)),
        [],
        [b"event", b""],
        [b"group", b"g", b"entry", b"5-0"],
    ],
)
def test_an_entry_that_is_no_event_is_an_error(flat: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"it has no event|not of one length"):
        decode_entry(b"5-0", flat)
    assert events_of(b"5-0", flat) == ()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"acked"}, [("acked", "5-0")]),
        ({"rejected"}, [("rejected", "5-1")]),
        ({"acked", "rejected"}, [("acked", "5-0"), ("rejected", "5-1")]),
        ({"nacked"}, []),
    ],
)
def test_events_are_chosen_by_their_own_names(names: set[str], told: list[tuple[str, str]]) -> None:
    """A rejected ack is no end of a delivery, for example."""
    found = events_of(b"9-0", many(b"rejected", b"1"), names)
    assert [(event.event, event.job) for event in found] == told
