import copy
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.scene import KEYS, make_job
from workers import InvalidFieldError, Job
from workers.loop.in_flight import Source
from workers.protocol.messages import MAX_JOB_ID_BYTES

binary_pairs = st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), min_size=1, max_size=8)
RESERVED = (b"reaper.job", b"reaper.deliveries", b"reaper.generation", b"reaper.first_ms", b"reaper.consumers")
metadata_pairs = st.lists(
    st.tuples(st.sampled_from(RESERVED), st.one_of(st.binary(max_size=20), st.integers().map(lambda n: b"%d" % n))),
    max_size=6,
)


def flatten(pairs: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [part for pair in pairs for part in pair]


@given(binary_pairs, metadata_pairs, st.data())
def test_fields_arrive_byte_for_byte_in_order_with_duplicates_and_without_our_own(
    pairs: list[tuple[bytes, bytes]], metadata: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    users = [pair for pair in pairs if not pair[0].startswith(b"reaper.")]
    mixed = [(b"n", b"1"), *users]
    for pair in metadata:
        mixed.insert(data.draw(st.integers(0, len(mixed))), pair)

    job = make_job(*flatten(mixed))

    assert job.pairs == [(b"n", b"1"), *users]
    assert job.fields == dict(job.pairs)
    assert job.reserved == dict(pair for pair in mixed if pair[0].startswith(b"reaper."))


@given(metadata_pairs, st.integers(1, 5), st.integers(1, 5))
def test_any_metadata_makes_a_valid_job(metadata: list[tuple[bytes, bytes]], times: int, limit: int) -> None:
    job = make_job(*flatten(metadata), b"n", b"1", times=times, limit=limit)

    assert times <= job.deliveries <= times + limit - 1
    assert 0 < len(job.raw_id) <= MAX_JOB_ID_BYTES
    assert job.generation >= 0
    assert job.first_ms >= 0


def test_a_job_from_the_retry_stream_still_belongs_to_its_stream() -> None:
    job = make_job(source=Source(KEYS.retry, KEYS.stream))

    assert (job.stream, job._origin.key) == ("orders", KEYS.retry)


def test_a_job_id_that_is_no_text_can_be_shown() -> None:
    assert make_job(b"reaper.job", b"\xff\xfe").id == "\\xff\\xfe"


# ---- the fencing token


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"times": 1}, {"times": 2}),
        ({"times": 1_000}, {"times": 1, "copies": 1}),
        ({"times": 3, "copies": 7}, {"times": 1, "copies": 8}),
        ({"times": 9, "copies": 999}, {"times": 1, "copies": 0, "generation": 1}),
    ],
    ids=["taken over", "copied", "copied again", "redriven"],
)
def test_a_later_delivery_of_a_job_has_a_greater_fencing_token(earlier: dict[str, int], later: dict[str, int]) -> None:
    assert token_of(**earlier) < token_of(**later)


@pytest.mark.parametrize("copies", ["99999999999999", "-1", "many", ""])
def test_nonsense_from_a_producer_stays_within_its_part_of_the_token(copies: str) -> None:
    job = make_job(b"reaper.copies", copies.encode())
    assert job.fencing_token < 1 << 40


def token_of(times: int = 1, copies: int = 0, generation: int = 0) -> int:
    flat = (b"reaper.copies", b"%d" % copies, b"reaper.generation", b"%d" % generation)
    return make_job(*flat, times=times).fencing_token


# ---- fields as text, and as JSON


def test_a_field_is_read_as_text_of_duplicates_the_last_one() -> None:
    job = make_job(b"order", b"1", b"note", "gr\u00fcn".encode(), b"order", b"17", b"empty", b"")
    assert [job.text("order"), job.text("note"), job.text("empty", "-")] == ["17", "gr\u00fcn", ""]


@pytest.mark.parametrize("default", ["-", "", None, b"\xff", 0])
def test_a_default_stands_in_for_a_field_that_is_missing(default: object) -> None:
    job = make_job(b"order", b"17")
    assert job.text("note", default) is default
    assert job.json("note", default) is default


@pytest.mark.parametrize(
    ("flat", "sentence"),
    [
        ((b"order", b"17"), "field 'note' of job 1700000000000-0 is missing. The job has the fields [order]."),
        (
            (b"a", b"1", b"b", b"2", b"a", b"3"),
            "field 'note' of job 1700000000000-0 is missing. The job has the fields [a, b].",
        ),
        ((b"note\n", b"1"), r"field 'note' of job 1700000000000-0 is missing. The job has the fields [note\n]."),
        ((b"reaper.job", b"j-7"), "field 'note' of job j-7 is missing. The job has the fields []."),
        (
            tuple(word for number in range(12) for word in (b"%d" % number, b"")),
            ("field 'note' of job 1700000000000-0 is missing. The job has the fields [0, 1, 10 …]."),
        ),
        (
            (b"note", b"\xff"),
            (
                "field 'note' of job 1700000000000-0 is not UTF-8 text: 'utf-8' codec can't decode byte 0xff in "
                "position 0: invalid start byte."
            ),
        ),
    ],
)
@pytest.mark.parametrize("read", [Job.text, Job.json])
def test_bad_text_names_its_job(read: Callable[[Job, str], object], flat: tuple[bytes, ...], sentence: str) -> None:
    with pytest.raises(InvalidFieldError) as raised:
        read(make_job(*flat), "note")
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b'{"order": 17}', {"order": 17}), (b"null", None), (b'"gr\xc3\xbcn"', "gr\u00fcn"), (b" [1.5] ", [1.5])],
)
def test_a_field_is_read_as_json_by_name_or_because_it_is_the_only_one(value: bytes, expected: object) -> None:
    assert make_job(b"kind", b"mail", b"payload", value).json("payload") == expected
    assert make_job(b"payload", value, b"reaper.job", b"j-7").json() == expected
    assert make_job(b"\xffodd", value).json() == expected


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"{'order': 17}", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"[" * 100_000, ""),
        (b"9" * 5_000, ""),
    ],
    ids=["empty", "Python", "too deep", "too long a number"],
)
def test_bad_json_names_its_job(value: bytes, why: str) -> None:
    with pytest.raises(InvalidFieldError) as raised:
        make_job(b"payload", value, b"reaper.job", b"j-7").json("payload", default=None)
    assert str(raised.value).startswith(f"field 'payload' of job j-7 is not JSON: {why}")


@pytest.mark.parametrize(
    ("flat", "has"), [((b"a", b"1", b"b", b"2"), "[a, b]"), ((b"reaper.job", b"1700000000000-0"), "[]")]
)
def test_without_a_name_there_must_be_one_field(flat: tuple[bytes, ...], has: str) -> None:
    with pytest.raises(InvalidFieldError) as raised:
        make_job(*flat).json(default=None)
    assert str(raised.value) == f"job 1700000000000-0 has the fields {has}. Name the field to read as JSON."


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_job_is_not_copied_and_says_what_to_hand_on_instead(copied: Callable[[Job], object]) -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copied(make_job())
