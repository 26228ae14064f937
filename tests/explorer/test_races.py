"""Each race between two owners, a late call and a third party, played by hand. The first completion wins."""

from typing import Any

import pytest
from hiredis import ReplyError

from tests.explorer.board import V_MS, Board, fields_of
from tests.explorer.hands import A, B, Hands
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.contract
BY_COPY = pytest.mark.parametrize("policy", ["stream", "retry-stream"])


@pytest.fixture
def hands(board: Board) -> Hands:
    return Hands(board)


def is_error(reply: Any, word: str) -> bool:
    """Return whether Redis answered with this error. Redis 6.2 puts text of its own around it."""
    return isinstance(reply, ReplyError) and word in str(reply)


# ---- a delivery changes hands


@BY_COPY
def test_a_former_owner_settles_nothing_of_what_was_recovered_by_a_copy(hands: Hands, policy: str) -> None:
    hands.fresh(policy)
    [entry] = hands.read(A)
    hands.recover_stalled(entry)
    [(source, again, _, _)] = hands.board.read(B)
    late = [hands.ack(A, entry), hands.settle(A, "nack", entry), hands.settle(A, "reject", entry)]
    assert late == [[0], [0], [0]]
    assert hands.extend(A, entry) == 0
    assert hands.ack(B, again, source=source) == 1
    assert (hands.board.pending(source), hands.board.redis("XLEN", hands.board.keys.retry)) == ([], 0)


@pytest.mark.parametrize("verb", ["nack", "retry", "hand_back", "reject"])
def test_where_it_changed_hands_in_place_a_late_verdict_takes_nothing_from_the_new_owner(
    hands: Hands, verb: str
) -> None:
    hands.fresh(recovery="embedded")
    [entry] = hands.read(A)
    hands.board.age()
    hands.walk(B)
    assert (hands.settle(A, verb, entry), hands.extend(A, entry)) == ([0], 0)
    assert hands.extend(B, entry, times=2) == 1


def test_where_it_changed_hands_in_place_a_late_ack_wins(hands: Hands) -> None:
    hands.fresh(recovery="embedded")
    [entry] = hands.read(A)
    hands.board.age()
    hands.walk(B)
    assert (hands.ack(A, entry), hands.ack(B, entry)) == (1, [0])
    assert (hands.extend(B, entry, times=2), hands.settle(B, "nack", entry, times=2)) == (0, [0])


def test_what_the_new_owner_gave_back_by_a_copy_runs_again(hands: Hands) -> None:
    hands.fresh(recovery="embedded")
    [entry] = hands.read(A)
    hands.board.age()
    hands.walk(B)
    hands.settle(B, "nack", entry, times=2)
    assert (hands.ack(A, entry), len(hands.read(A))) == ([0], 1)


def test_what_the_new_owner_gave_back_in_place_is_ended_by_a_late_ack(hands: Hands) -> None:
    hands.fresh("in-place", "embedded")
    [entry] = hands.read(A)
    hands.board.age()
    hands.walk(B)
    hands.settle(B, "nack", entry, times=2)
    assert (hands.ack(A, entry), hands.board.pending("orders"), hands.walk(B)[4]) == (1, [], [])


# ---- adoption


def test_who_was_declared_dead_and_lives_is_made_young_by_its_heartbeat(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.call("adopt", "orders", A, 0, "-")
    assert hands.extend(A, entry) == 1
    assert hands.recover(entry)[2][0] == entry, "it is due later"


def test_who_was_declared_dead_is_recovered_at_once_and_counted(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.call("adopt", "orders", A, 0, "-")
    assert hands.event_of(hands.recover(entry))[b"event"] == b"recovered"
    [(_, _, fields, _)] = hands.board.read(B)
    assert fields_of(fields)[b"reaper.deliveries"] == b"1"


def test_what_a_read_brought_whose_reply_was_lost_comes_again_uncounted(hands: Hands) -> None:
    hands.fresh(jobs=3)
    first, *lost = hands.read(A)
    _, found = hands.board.call("adopt", "orders", A, 9, "-", first)
    assert [(entry_id, times) for entry_id, _, times in found] == [(one, 1) for one in lost]


# ---- lost replies and lost writes


def test_a_call_that_is_sent_again_has_the_same_answer(hands: Hands) -> None:
    hands.fresh(jobs=3)
    one, two, three = hands.read(A)
    assert [hands.ack(A, one, two, number=1) for _ in range(2)] == [2, 2]
    assert [hands.settle(A, "nack", three, number=2) for _ in range(2)] == [[1], [1]]
    assert len(hands.read(B)) == 1


def test_a_call_that_comes_after_a_later_one_does_nothing(hands: Hands) -> None:
    hands.fresh(jobs=2)
    one, two = hands.read(A)
    hands.settle(A, "nack", one, delay=9_999, number=1)
    hands.ack(A, two, number=2)
    assert is_error(hands.settle(A, "nack", one, delay=9_999, number=1), "OLDCALL")
    assert hands.board.scheduled(quarantined=False) == 1


def test_two_processes_of_one_name_are_told_apart_but_one_reply_is_kept(hands: Hands) -> None:
    hands.fresh(jobs=2)
    one, two = hands.read(A)
    calls = [("p1", one), ("p2", two), ("p1", one)]
    assert [hands.ack(A, entry, number=1, caller=caller) for caller, entry in calls] == [1, 1, [0]]


def test_an_ack_that_a_failover_lost_is_carried_out_when_it_is_sent_again(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    kept = {key: hands.board.redis("DUMP", key) for key in ("orders", hands.board.keys.settings)}
    hands.ack(A, entry, number=5)
    for key, dumped in kept.items():
        hands.board.redis("RESTORE", key, 0, dumped, "REPLACE")
    assert hands.ack(A, entry, number=5) == 1


@pytest.mark.parametrize(("verb", "left"), [("ack", 0), ("nack", 1)])
def test_a_call_that_is_sent_again_after_its_consumer_was_deleted_is_rejected_and_does_nothing(
    hands: Hands, verb: str, left: int
) -> None:
    """A process was paused before it read the answer, and a later one of its name has cleared its consumer away."""
    hands.fresh()
    [entry] = hands.read(A)

    def say() -> Any:
        return hands.ack(A, entry, number=1) if verb == "ack" else hands.settle(A, verb, entry, number=1)

    assert say() in (1, [1])
    script = load_script("workers.protocol", "delete_consumer").source
    assert hands.board.redis("EVAL", script, 2, "orders", hands.board.keys.settings, "billing", A) == 1
    assert say() == [0]
    assert len(hands.read(B)) == left


# ---- strangers


def test_a_worker_whose_consumer_was_deleted_holds_again_what_it_runs(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.redis("XGROUP", "DELCONSUMER", "orders", "billing", A)
    assert (hands.extend(A, entry), hands.hold(A, entry), hands.ack(A, entry)) == (3, [1], 1)
    assert hands.hold(A, entry) == [0]


def test_a_call_that_comes_late_holds_nothing_that_was_settled(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.redis("XGROUP", "DELCONSUMER", "orders", "billing", A)
    assert (hands.extend(A, entry), hands.ack(A, entry, number=1)) == (3, [0])
    assert (hands.hold(A, entry, answered=0), hands.hold(A, entry, answered=1)) == ([0], [1])


def test_what_was_dropped_is_not_settled(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.redis("XGROUP", "DELCONSUMER", "orders", "billing", A)
    assert (hands.ack(A, entry), hands.settle(A, "nack", entry)) == ([0], [0])


def test_where_others_claim_in_place_nothing_is_held_again(hands: Hands) -> None:
    hands.fresh(recovery="embedded")
    [entry] = hands.read(A)
    hands.board.redis("XGROUP", "DELCONSUMER", "orders", "billing", A)
    assert hands.extend(A, entry) == 0


@pytest.mark.parametrize("start", ["$", "0"])
def test_when_the_group_is_destroyed_nothing_is_settled_until_it_is_there_again(hands: Hands, start: str) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.redis("XGROUP", "DESTROY", "orders", "billing")
    assert is_error(hands.ack(A, entry, number=1), "NOGROUP")
    assert hands.board.redis("HGET", hands.board.keys.settings, f"settled:{A}") is None
    hands.board.redis("XGROUP", "CREATE", "orders", "billing", start)
    if start == "$":
        assert (hands.extend(A, entry), hands.hold(A, entry)) == (3, [1])
        assert hands.ack(A, entry, number=1) == 1
    else:
        assert hands.extend(A, entry) == 0, "Redis hands it out anew, so one of two would be too many"
        assert hands.read(B) == [entry]


def test_a_bare_xack_of_a_former_owner_settles_in_place_and_hits_nothing_where_jobs_are_copied(hands: Hands) -> None:
    hands.fresh(recovery="embedded")
    [entry] = hands.read("plain")
    hands.board.age()
    hands.walk(B)
    assert (hands.board.redis("XACK", "orders", "billing", entry), hands.ack(B, entry)) == (1, [0])
    hands.fresh()
    [entry] = hands.read("plain")
    hands.recover_stalled(entry)
    assert hands.board.redis("XACK", "orders", "billing", entry) == 0


def test_what_a_position_set_back_brings_goes_to_the_next_reader(hands: Hands) -> None:
    hands.fresh(jobs=2)
    done, runs = hands.read(A)
    hands.ack(A, done, deletes=True)
    hands.board.redis("XGROUP", "SETID", "orders", "billing", "0")
    assert hands.read(B) == [runs]
    assert (hands.settle(A, "nack", runs), hands.extend(A, runs)) == ([0], 0)
    assert (hands.ack(A, runs), hands.ack(B, runs)) == (1, [0])


# ---- deletions, and the place of copies


def test_an_ack_deletes_what_it_settles_and_nothing_else(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    calls = [hands.ack(A, entry, deletes=True), hands.board.redis("XLEN", "orders"), hands.ack(A, entry, deletes=True)]
    assert calls == [1, 0, [0]]


def test_with_a_second_group_nothing_is_deleted_and_nothing_is_copied_into_the_stream(hands: Hands) -> None:
    hands.fresh()
    hands.board.redis("XGROUP", "CREATE", "orders", "audit", "0")
    [entry] = hands.read(A)
    assert hands.settle(A, "nack", entry) == [[4, b"several_groups"]]
    assert (hands.ack(A, entry, deletes=True), hands.board.redis("XLEN", "orders")) == (1, 1)


# ---- odd calls and odd jobs


def test_an_entry_twice_in_a_call_is_settled_once(hands: Hands) -> None:
    hands.fresh(jobs=2)
    one, two = hands.read(A)
    assert hands.ack(A, one, one, two) == [1, 0, 1]
    hands.fresh()
    [entry] = hands.read(A)
    assert (hands.settle(A, "nack", entry, entry), hands.board.redis("XLEN", "orders")) == ([1, 0], 1)


@pytest.mark.parametrize("words", [7_900, 30_000])
def test_a_job_that_is_too_large_to_be_copied_is_held(hands: Hands, words: int) -> None:
    hands.fresh(body=range(words))
    [entry] = hands.read(A)
    assert hands.settle(A, "nack", entry) == [[4, b"too many fields"]]
    assert hands.recover_stalled(entry)[3] == [entry, A.encode(), b"too many fields"]
    assert hands.ack(A, entry) == 1


def test_in_place_even_a_large_job_is_given_back(hands: Hands) -> None:
    hands.fresh("in-place", body=range(7_900))
    [entry] = hands.read(A)
    assert hands.settle(A, "nack", entry) == [1]


def test_four_hundred_acks_fit_into_a_call(hands: Hands) -> None:
    hands.fresh(jobs=400)
    assert hands.ack(A, *hands.read(A, 400)) == 400


def test_where_one_delivery_is_the_limit_a_crash_makes_a_dead_letter(hands: Hands) -> None:
    hands.fresh(limit=1)
    [entry] = hands.read(A)
    assert hands.event_of(hands.recover_stalled(entry))[b"event"] == b"dead_lettered"


def test_a_forged_count_is_executed_all_the_same(hands: Hands) -> None:
    hands.fresh(body=("reaper.deliveries", "99", "n", 1))
    [entry] = hands.read(A)
    assert hands.event_of(hands.recover_stalled(entry))[b"reason"] == b"not_released"


def test_a_journal_that_is_no_stream_stops_nothing(hands: Hands) -> None:
    hands.fresh()
    hands.board.redis("SET", hands.board.keys.journal, "no stream")
    [entry] = hands.read(A)
    assert hands.ack(A, entry) == 1


def test_rubbish_in_the_schedule_is_put_off(hands: Hands) -> None:
    hands.fresh()
    hands.board.redis("ZADD", hands.board.keys.schedule, 0, b"rubbish", 0, b"\x81\xa1v\x01")
    assert hands.move_due()[0] == b"ok"
    assert hands.board.redis("ZCOUNT", hands.board.keys.schedule, "-inf", 1) == 0


def test_a_script_says_so_where_the_group_is_gone_or_has_no_settings(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    assert is_error(hands.ack(A, b"1-1", source="nowhere"), "NOGROUP")
    hands.board.redis("DEL", hands.board.keys.settings)
    assert is_error(hands.settle(A, "nack", entry), "NOSETTINGS")
    assert is_error(hands.board.call("extend", "orders", A, entry, 1, 1), "NOSETTINGS")
    assert hands.recover(entry) == [b"unknown"]


# ---- deliveries that a third party gave back


def test_what_somebody_made_old_was_given_back_and_counts_for_nobody(hands: Hands) -> None:
    """Valkey proposes this form. The owner stays, and the time is 0."""
    hands.fresh(jobs=64)
    ids = hands.read(A, 64)
    for entry in ids:
        hands.board.redis("XCLAIM", "orders", "billing", A, 0, entry, "TIME", 0, "RETRYCOUNT", 2, "JUSTID")
    event = hands.event_of(hands.recover(*ids))
    assert (event[b"event"], event[b"reason"]) == (b"recovered", b"given_back")
    assert hands.board.scheduled(quarantined=True) == 0


def test_a_fatal_count_is_a_dead_letter(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.redis("XCLAIM", "orders", "billing", A, 0, entry, "TIME", 0, "RETRYCOUNT", 2**63 - 1, "JUSTID")
    assert hands.event_of(hands.recover(entry))[b"event"] == b"dead_lettered"


# ---- the lease and the beat


@pytest.mark.parametrize("lease", ["L0", ""])
def test_who_does_not_hold_the_lease_writes_nothing(hands: Hands, lease: str) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.age()
    assert (hands.recover(entry, lease=lease), hands.move_due(lease)) == ([b"fenced", b"L1"], [b"fenced", b"L1"])
    assert len(hands.board.pending("orders")) == 1


def test_after_a_gap_recovery_waits(hands: Hands) -> None:
    hands.fresh()
    [entry] = hands.read(A)
    hands.board.age()
    hands.board.redis("HINCRBY", hands.board.keys.settings, "beat", -V_MS)
    word, ms, gap = hands.recover(entry)
    assert (word, ms, gap >= V_MS) == (b"waits", V_MS, True)
