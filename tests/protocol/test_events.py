"""Lifecycle events are written and read as `docs/protocol.md` says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.protocol.events import (
    EventName,
    JournalLevel,
    LifecycleEvent,
    decode_event,
    encode_data,
    journalled,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(job=st.text(), data=st.dictionaries(st.text().filter(lambda name: name != "v"), json_values, max_size=5))
def test_an_event_is_read_as_it_was_written(job: str, data: dict[str, object]) -> None:
    flat = [b"event", b"acked", b"job", job.encode(), b"data", encode_data(data).encode()]
    assert decode_event(b"1700000000001-3", flat) == LifecycleEvent(
        "1700000000001-3", 1_700_000_000_001, "acked", job, {"v": 1, **data}
    )


def test_data_is_compact_ascii_with_its_version_first() -> None:
    assert encode_data({"group": "é", "n": 1}) == '{"v":1,"group":"\\u00e9","n":1}'


def test_bytes_that_are_no_text_do_not_hide_an_event() -> None:
    flat = [b"event", b"acked", b"job", b"\xff", b"data", b'{"v":1,"consumer":"\xff"}']
    event = decode_event(b"1-1", flat)
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
        decode_event(b"5-0", flat)


def test_levels_keep_what_they_promise() -> None:
    kept = {level: {name for name in EventName if journalled(name, level)} for level in JournalLevel}
    assert kept[JournalLevel.OFF] == set()
    assert kept[JournalLevel.FULL] == set(EventName)
    assert kept[JournalLevel.FULL] - kept[JournalLevel.SETTLEMENTS] == {
        EventName.DELIVERED,
        EventName.STARTED,
        EventName.EXTENDED,
    }
