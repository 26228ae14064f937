"""`workers.protocol.events` reads the events that the scripts write into the journal."""

import pytest

from tests.explorer.board import Board
from tests.explorer.hands import A, Hands
from workers.protocol.events import LifecycleEvent, decode_entry

pytestmark = pytest.mark.contract


@pytest.fixture
def hands(board: Board) -> Hands:
    return Hands(board)


def journal(board: Board) -> list[LifecycleEvent]:
    return [event for entry in board.redis("XRANGE", board.keys.journal, "-", "+") for event in decode_entry(*entry)]


def test_a_recovery_of_many_is_an_event_for_each(hands: Hands) -> None:
    hands.fresh(jobs=3)
    ids = hands.read(A)
    hands.recover_stalled(*ids)
    events = journal(hands.board)
    assert [(one.event, one.job, one.data["entry"]) for one in events] == [
        ("recovered", entry.decode(), entry.decode()) for entry in ids
    ]
    first = events[0]
    assert [first.data[name] for name in ("consumer", "mode", "reason")] == [A, "reaper", "visibility_timeout"]
    assert [first.number(name) for name in ("delivery", "token", "visibility_ms")] == [1, 7, 30_000]
    assert (first.number("idle_ms") or 0) >= 30_000
    assert first.number("enqueued_ms") == int(ids[0].split(b"-")[0])
    assert all("-" in one.data["new_entry"] for one in events)


def test_a_job_with_an_id_of_its_own_is_told_by_that(hands: Hands) -> None:
    hands.fresh(body=("reaper.job", "invoice 7", "n", 1))
    [entry] = hands.read(A)
    hands.settle(A, "nack", entry)
    hands.board.age()
    [(_, again, _, _)] = hands.board.read(A)
    hands.board.age()
    hands.recover(again)
    [_, recovered] = journal(hands.board)
    assert (recovered.job, recovered.data["entry"]) == ("invoice 7", again.decode())


def test_of_many_acks_those_that_came_too_late_are_told_as_such(hands: Hands) -> None:
    hands.fresh(jobs=3)
    ids = hands.read(A)
    hands.ack(A, ids[1])
    hands.ack(A, *ids)
    assert [one.event for one in journal(hands.board)] == ["acked", "acked", "rejected", "acked"]


@pytest.mark.parametrize(
    "flat",
    [
        (),
        (b"event", b"acked", b"entry", b"1-1,2-1", b"idle_ms", b"1,2,3"),
        (b"entry", b"1-1"),
    ],
)
def test_what_is_no_event_is_rejected(flat: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match=r"no event|not of one length"):
        decode_entry(b"5-1", flat)
