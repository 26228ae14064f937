import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.workers.scene import KEYS, make_held, make_job
from workers.loop.held import Source
from workers.protocol.messages import MAX_JOB_ID_BYTES

binary_pairs = st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), min_size=1, max_size=8)
RESERVED = (b"reaper.job", b"reaper.deliveries", b"reaper.generation", b"reaper.first_ms", b"reaper.consumers")
metadata_pairs = st.lists(
    st.tuples(st.sampled_from(RESERVED), st.one_of(st.binary(max_size=20), st.integers().map(lambda n: b"%d" % n))),
    max_size=6,
)


def flatten(pairs: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [part for pair in pairs for part in pair]


@given(binary_pairs)
@example([(b"a", b"1"), (b"a", b"2"), (b"", b"")])
def test_fields_of_a_bare_entry_arrive_byte_for_byte_in_order_and_with_duplicates(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    users = [pair for pair in pairs if not pair[0].startswith(b"reaper.")]

    job = make_job(*flatten(pairs))

    assert job.pairs == users
    assert job.fields == dict(users)


@given(binary_pairs, metadata_pairs, st.data())
def test_our_own_fields_are_never_shown_among_the_users(
    pairs: list[tuple[bytes, bytes]], metadata: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    users = [pair for pair in pairs if not pair[0].startswith(b"reaper.")]
    mixed = [(b"n", b"1"), *users]
    for pair in metadata:
        mixed.insert(data.draw(st.integers(0, len(mixed))), pair)

    job = make_job(*flatten(mixed))

    assert job.pairs == [(b"n", b"1"), *users]
    assert job.reserved == dict(pair for pair in mixed if pair[0].startswith(b"reaper."))


@given(metadata_pairs, st.integers(1, 5), st.integers(1, 5))
def test_whatever_a_producer_writes_there_a_job_is_valid_and_has_a_delivery_left(
    metadata: list[tuple[bytes, bytes]], times: int, limit: int
) -> None:
    job = make_job(*flatten(metadata), b"n", b"1", times=times, limit=limit)

    assert times <= job.deliveries <= times + limit - 1
    assert 0 < len(job.raw_id) <= MAX_JOB_ID_BYTES
    assert job.generation >= 0
    assert job.first_ms >= 0


def test_a_bare_entry_is_a_job_with_its_entry_id() -> None:
    job = make_job(b"n", b"1", entry_id=b"1700000000000-7")

    assert (job.id, job.entry_id, job.deliveries, job.generation, job.first_ms) == (
        "1700000000000-7",
        "1700000000000-7",
        1,
        0,
        1_700_000_000_000,
    )


def test_metadata_of_a_redelivered_entry_is_read() -> None:
    job = make_job(
        b"n", b"1", b"reaper.job", b"order-7", b"reaper.deliveries", b"1", b"reaper.generation", b"2",
        b"reaper.first_ms", b"1600000000000",
    )  # fmt: skip

    assert (job.id, job.deliveries, job.generation, job.first_ms, job.fields) == (
        "order-7",
        2,
        2,
        1_600_000_000_000,
        {b"n": b"1"},
    )


def test_a_job_from_the_retry_stream_still_belongs_to_its_stream() -> None:
    job = make_job(source=Source(KEYS.retry, KEYS.stream))

    assert (job.stream, job._origin.key) == ("orders", KEYS.retry)


def test_a_job_id_that_is_no_text_can_be_shown() -> None:
    assert make_job(b"reaper.job", b"\xff\xfe").id == "\\xff\\xfe"


def test_a_source_forgets_a_settled_delivery_but_not_a_later_one_of_the_same_entry() -> None:
    source = Source(KEYS.stream, KEYS.stream)
    first, second = make_held(source=source), make_held(source=source)
    source.hold(first)
    source.hold(second)

    source.forget(first)

    assert source.deliveries == {second.job.raw_entry_id: second}


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


def test_a_token_is_made_of_generation_copies_and_times_delivered() -> None:
    assert token_of(times=3) == 3
    assert token_of(times=3, copies=2, generation=1) == (1 << 40) + (2 << 20) + 3


@pytest.mark.parametrize("copies", ["99999999999999", "-1", "many", ""])
def test_nonsense_from_a_producer_stays_within_its_part_of_the_token(copies: str) -> None:
    job = make_job(b"reaper.copies", copies.encode())
    assert job.fencing_token < 1 << 40


def token_of(times: int = 1, copies: int = 0, generation: int = 0) -> int:
    flat = (b"reaper.copies", b"%d" % copies, b"reaper.generation", b"%d" % generation)
    return make_job(*flat, times=times).fencing_token
