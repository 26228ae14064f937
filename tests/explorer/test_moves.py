"""The way of jobs through the scripts, by each policy: settled, recovered, quarantined, released."""

import pytest

from tests.explorer.board import V_MS, Board, fields_of
from tests.explorer.hands import A, B, Hands

pytestmark = pytest.mark.contract
each_policy = pytest.mark.parametrize("policy", ["stream", "retry-stream", "in-place"])
OLD_MS = 3_000_000_000


@pytest.fixture
def hands(board: Board) -> Hands:
    return Hands(board)


def stalled_until_the_last(hands: Hands, policy: str, jobs: int) -> list[tuple[str, bytes]]:
    """Have jobs delivered twice of three; return source and entry of each, in hand of B."""
    hands.fresh(policy, jobs=jobs)
    ids = hands.read(A)
    hands.recover_stalled(*ids)
    if policy == "in-place":  # as a reader with CLAIM gets it
        hands.board.redis("XCLAIM", "orders", "billing", B, 1_000_000_000, *ids)
        return [("orders", entry) for entry in ids]
    return [(source, entry) for source, entry, _, _ in hands.board.read(B)]


@each_policy
def test_what_stalled_is_ready_again_and_the_journal_has_it_in_one_event(hands: Hands, policy: str) -> None:
    hands.fresh(policy, jobs=3)
    ids = hands.read(A)
    event = hands.event_of(hands.recover_stalled(*ids))
    assert (event[b"event"], event[b"reason"]) == (b"recovered", b"visibility_timeout")
    assert [len(event[name].split(b",")) for name in (b"entry", b"idle_ms", b"new_entry")] == [3, 3, 3]
    assert (b"job" in event, b"generation" in event) == (False, False)
    written = hands.board.redis("XREVRANGE", hands.board.keys.journal, "+", "-", "COUNT", 1)[0][1]
    assert fields_of(written) == event
    if policy == "in-place":
        rows = hands.board.pending("orders")
        assert all(idle > OLD_MS and times == 1 for _, _, idle, times in rows)
        assert (hands.extend(A, ids[0]), hands.settle(A, "nack", ids[0])) == (0, [0])
    else:
        assert hands.ack(A, *ids) == [0, 0, 0]


@each_policy
def test_of_quarantined_jobs_the_second_is_released_when_the_first_has_shown_that_it_runs(
    hands: Hands, policy: str
) -> None:
    in_hand = stalled_until_the_last(hands, policy, 2)
    source = in_hand[0][0]
    hands.recover_stalled(*(entry for _, entry in in_hand), source=source)
    assert hands.board.scheduled(quarantined=True) == 2
    assert hands.move_due()[2:4] == [1, 1]
    assert hands.move_due()[4] == [], "the first one is in doubt"
    [(source, first, fields, _)] = hands.board.read(B)
    assert fields_of(fields)[b"reaper.quarantined"] == b"1"
    hands.extend(B, first, source=source, handling=0)
    for _ in range(2):  # sent again after a lost reply, too (rule W8)
        hands.extend(B, first, source=source, handling=1)
    assert hands.move_due()[4] == [], "it has arrived"
    hands.extend(B, first, source=source)
    assert hands.move_due()[4] != [], "it runs"

    [(other, second, _, _)] = hands.board.read(B)
    assert hands.event_of(hands.recover_stalled(second, source=other))[b"reason"] == b"never_arrived"
    assert hands.event_of(hands.recover(first, source=source))[b"event"] == b"dead_lettered"
    assert [letter[b"n"] for letter in hands.board.dead_letters()] == [b"0"]


@each_policy
def test_a_settled_job_leaves_nothing_behind(hands: Hands, policy: str) -> None:
    in_hand = stalled_until_the_last(hands, policy, 1)
    [(source, entry)] = in_hand
    hands.recover_stalled(entry, source=source)
    hands.move_due()
    [(source, released, _, _)] = hands.board.read(B)
    assert hands.ack(B, released, source=source) == 1
    assert hands.move_due()[2:4] == [0, 0]
    assert [hands.board.pending(one) for one in hands.board.sources] == [[], []]
    assert hands.board.redis("EXISTS", hands.board.keys.schedule, hands.board.quarantine) == 0
    assert hands.board.redis("XLEN", hands.board.keys.retry) == 0


@each_policy
def test_a_delayed_job_is_ready_when_it_is_due(hands: Hands, policy: str) -> None:
    hands.fresh(policy)
    [entry] = hands.read(A)
    assert hands.settle(A, "nack", entry, delay=60_000) == [1]
    assert 0 < hands.move_due()[1] <= 60_000
    [member] = hands.board.redis("ZRANGE", hands.board.keys.schedule, 0, -1)
    hands.board.redis("ZADD", hands.board.keys.schedule, 0, member)
    assert hands.move_due()[1] == -1
    [(_, _, fields, _)] = hands.board.read(B)
    assert fields_of(fields)[b"reaper.deliveries"] == b"1"


@each_policy
@pytest.mark.parametrize(("verb", "deliveries"), [("nack", b"1"), ("retry", b"0"), ("hand_back", b"0")])
def test_only_a_failure_counts(hands: Hands, policy: str, verb: str, deliveries: bytes) -> None:
    hands.fresh(policy)
    [entry] = hands.read(A)
    assert hands.settle(A, verb, entry) == [1]
    rows = hands.board.pending("orders")
    if rows:
        assert (policy, rows[0][3]) == ("in-place", int(deliveries)) if verb != "hand_back" else True
    else:
        [(_, _, fields, _)] = hands.board.read(B)
        assert fields_of(fields)[b"reaper.deliveries"] == deliveries


@each_policy
def test_a_last_failure_and_a_rejection_are_dead_letters(hands: Hands, policy: str) -> None:
    hands.fresh(policy, jobs=2, limit=1)
    one, two = hands.read(A)
    [[code, _]] = hands.settle(A, "nack", one)
    [[other, _]] = hands.settle(A, "reject", two)
    letters = hands.board.dead_letters()
    assert (code, other, [letter[b"reaper.dead.reason"] for letter in letters]) == (2, 2, [b"why", b"why"])
    assert hands.board.pending("orders") == []


@each_policy
def test_an_embedded_worker_claims_overdue_deliveries_and_makes_the_others_ready(hands: Hands, policy: str) -> None:
    hands.fresh(policy, "embedded", jobs=5)
    hands.read(A)
    hands.board.age()
    assert len(hands.walk(A)[4]) == 0, "its own deliveries are in hand"
    reply = hands.walk(B, room=3)
    assert [times for _, _, times in reply[6]] == [2, 2, 2]
    mine = [(row[0], row[3]) for row in hands.board.pending("orders") if row[1] == B.encode()]
    assert mine == [(entry_id, 2) for entry_id, _, _ in reply[6]]
    assert reply[1] == b"(" + mine[-1][0], "the page ends when the room is used up"
    ready = hands.event_of(hands.walk(B, room=0))
    assert (ready[b"event"], ready[b"entry"].count(b",")) == (b"recovered", 1)


@each_policy
def test_a_full_server_lets_workers_settle(hands: Hands, policy: str) -> None:
    hands.fresh(policy, jobs=6)
    ids = hands.read(A)
    hands.board.age()
    hands.board.redis("CONFIG", "SET", "maxmemory", "1")
    assert (hands.ack(A, *ids[:2]), hands.settle(A, "nack", ids[2])) == (2, [1])
    assert (hands.settle(A, "reject", ids[3])[0][0], hands.extend(A, ids[4])) == (2, 1)
    assert (hands.recover(ids[5])[0], hands.move_due()[0]) == (b"ok", b"ok")


@each_policy
def test_a_deleted_payload_is_told_and_acknowledged(hands: Hands, policy: str) -> None:
    hands.fresh(policy)
    [entry] = hands.read(A)
    hands.board.age()  # from 7.0 on, XCLAIM drops an entry without a payload
    hands.board.redis("XDEL", "orders", entry)
    assert hands.extend(A, entry) == 2
    assert hands.event_of(hands.recover(entry))[b"event"] == b"lost_payload"
    assert hands.board.pending("orders") == []


@pytest.mark.parametrize("mode", ["reaper", "embedded"])
def test_the_longest_timeout_of_a_job_counts(hands: Hands, mode: str) -> None:
    hands.fresh(recovery=mode, body=("reaper.visibility_ms", 2 * V_MS))
    [entry] = hands.read(A)
    hands.board.age()
    due = (hands.recover(entry) if mode == "reaper" else hands.walk(B))[2]
    assert (due[0], 0 < due[1] < V_MS) == (entry, True)


def test_several_quarantined_jobs_are_out_where_many_of_our_workers_read(hands: Hands) -> None:
    """A quarter of them. If a third party reads, it is one."""
    in_hand = stalled_until_the_last(hands, "stream", 4)
    hands.recover_stalled(*(entry for _, entry in in_hand))
    for number in range(8):
        hands.board.redis("XGROUP", "CREATECONSUMER", "orders", "billing", f"w~{number:012x}")
    assert [bool(hands.move_due()[4]) for _ in range(3)] == [True, True, False]
    hands.board.redis("XGROUP", "CREATECONSUMER", "orders", "billing", "plain")
    assert hands.move_due()[4] == []


@pytest.mark.parametrize("name", ["reaper.hand_backs", "reaper.waits"])
def test_what_an_entry_says_and_no_longer_holds_is_not_left_in_place(hands: Hands, name: str) -> None:
    """Else the next hand-back, or the next uncounted retry, would go on counting from there."""
    hands.fresh("in-place", body=("n", 1, name, 6))
    [entry] = hands.read(A)
    assert hands.settle(A, "nack", entry) == [1]
    [(_, flat)] = hands.board.redis("XRANGE", "orders", "-", "+")
    assert name.encode() not in fields_of(flat)
    assert fields_of(flat)[b"reaper.deliveries"] == b"1"


@pytest.mark.parametrize("name", ["reaper.hand_backs", "reaper.waits"])
def test_what_an_entry_says_and_still_holds_needs_no_copy(hands: Hands, name: str) -> None:
    hands.fresh("in-place", body=("n", 1, name, 6))
    [entry] = hands.read(A)
    hands.recover_stalled(entry)
    assert [row[0] for row in hands.board.pending("orders")] == [entry]
