"""When recovery waits after an outage, and when it does not. Instants are milliseconds of an invented clock."""

import logging

import pytest

from workers.protocol.calls import CALL_VALID_MS
from workers.runtime.clock_steps import CLOCK_JUMP_MS
from workers.runtime.grace import LEAST_SPREAD_MS, LEAST_VALID_MS, LONGEST_FIRST_WAIT_MS, OUTAGE_PART, Grace

LONGEST_MS = 30_000
OUTAGE_MS = 7_000
VISIBILITY_MS = 20_000
SERVER_OFFSET_MS = 1_700_000_000_000


def in_contact(*instants_ms: int) -> Grace:
    grace = Grace(LONGEST_MS, OUTAGE_MS)
    for now_ms in instants_ms:
        touch(grace, now_ms)
    return grace


def touch(grace: Grace, now_ms: int) -> None:
    grace.contact(now_ms, SERVER_OFFSET_MS + now_ms)


def fail(grace: Grace, *instants_ms: int) -> None:
    for now_ms in instants_ms:
        grace.failed(now_ms)


def test_without_an_outage_recovery_waits_for_nothing() -> None:
    assert in_contact(1_000, 4_000, 7_000).until(VISIBILITY_MS) == 0


def test_after_an_outage_recovery_waits_for_one_visibility_timeout() -> None:
    grace = in_contact(1_000)
    fail(grace, 4_000, 6_000, 8_000)
    touch(grace, 9_000)
    assert grace.until(VISIBILITY_MS) == 9_000 + VISIBILITY_MS


def test_the_wait_is_no_longer_than_the_longest() -> None:
    grace = in_contact(1_000)
    fail(grace, 4_000, 8_000)
    touch(grace, 9_000)
    assert grace.until(3_600_000) == 9_000 + LONGEST_MS


def test_a_longest_wait_of_zero_is_no_wait() -> None:
    grace = Grace(0, OUTAGE_MS)
    touch(grace, 1_000)
    fail(grace, 4_000, 8_000)
    touch(grace, 9_000)
    assert grace.until(VISIBILITY_MS) <= 9_000


def test_contact_lost_for_less_than_the_trust_window_is_no_outage() -> None:
    grace = in_contact(1_000)
    fail(grace, 2_000, 7_900)
    touch(grace, 1_000 + OUTAGE_MS)
    assert grace.until(OUTAGE_PART * OUTAGE_MS) == 0


def test_where_workers_extend_more_often_than_that_a_shorter_loss_is_one() -> None:
    grace = in_contact(1_000)
    fail(grace, 1_100, 2_900)
    touch(grace, 3_000)
    assert [grace.until(visibility_ms) for visibility_ms in (3_000, 5_997, 6_000, 60_000)] == [6_000, 8_997, 0, 0]


def test_nothing_is_asked_for_while_redis_is_away() -> None:
    grace = in_contact(1_000)
    fail(grace, 2_000, 7_600)
    assert grace.until(VISIBILITY_MS) == 0
    fail(grace, 7_700)
    assert grace.until(VISIBILITY_MS) == 7_700 + VISIBILITY_MS
    fail(grace, 20_000)
    assert grace.until(VISIBILITY_MS) == 20_000 + VISIBILITY_MS


def test_a_shorter_loss_that_follows_does_not_end_the_wait_after_a_longer_one() -> None:
    grace = in_contact(1_000)
    fail(grace, 1_100, 8_900)
    touch(grace, 9_000)
    fail(grace, 9_100, 10_900)
    touch(grace, 11_000)
    assert grace.until(VISIBILITY_MS) == 9_000 + VISIBILITY_MS
    assert grace.until(3_000) == 11_000 + 3_000
    fail(grace, 11_100, 18_900)
    touch(grace, 19_000)
    assert grace.until(VISIBILITY_MS) == 19_000 + VISIBILITY_MS


def test_a_gap_without_a_failed_attempt_is_our_own_pause() -> None:
    assert in_contact(1_000, 100_000).until(VISIBILITY_MS) == 0


def test_failures_in_the_moment_a_pause_ends_are_no_outage() -> None:
    grace = in_contact(1_000)
    fail(grace, 100_000, 100_000 + LEAST_SPREAD_MS - 1)
    touch(grace, 100_400)
    assert grace.until(VISIBILITY_MS) == 0


def test_a_pause_that_is_known_does_not_count_as_loss_of_contact() -> None:
    grace = in_contact(1_000)
    fail(grace, 1_100)
    grace.paused(101_150, 100_000)
    fail(grace, 101_200, 101_600)
    touch(grace, 101_700)
    assert grace.until(VISIBILITY_MS) == 0


def test_a_pause_is_taken_off_from_the_last_contact_whenever_that_was() -> None:
    grace = in_contact(1_000, 90_000)
    grace.paused(190_000, 100_000)
    fail(grace, 190_100, 190_500)
    touch(grace, 190_600)
    assert grace.until(VISIBILITY_MS) == 0


def test_failures_that_lie_just_far_enough_apart_are_an_outage() -> None:
    grace = in_contact(1_000)
    fail(grace, 9_000, 9_000 + LEAST_SPREAD_MS)
    touch(grace, 9_500)
    assert grace.until(VISIBILITY_MS) == 9_500 + VISIBILITY_MS


@pytest.mark.parametrize(("by_ms", "ends_at"), [(CLOCK_JUMP_MS, 0), (CLOCK_JUMP_MS + 1, 2_000 + VISIBILITY_MS)])
def test_a_clock_that_moves_by_no_more_than_the_tolerance_has_not_jumped(by_ms: int, ends_at: int) -> None:
    grace = in_contact(1_000)
    grace.contact(2_000, SERVER_OFFSET_MS + 2_000 + by_ms)
    assert grace.until(VISIBILITY_MS) == ends_at


def test_a_pause_does_not_hide_an_outage_that_was_seen_before_it() -> None:
    grace = in_contact(1_000)
    fail(grace, 2_000, 9_000)
    grace.paused(40_000, 30_000)
    touch(grace, 40_000)
    assert grace.until(VISIBILITY_MS) == 40_000 + VISIBILITY_MS


def test_a_failure_in_the_moment_a_pause_ends_is_counted_once_whoever_tells_of_it_first() -> None:
    grace = Grace(LONGEST_MS, outage_ms=500)
    touch(grace, 1_000)
    fail(grace, 1_100, 101_100)
    grace.paused(101_100, 100_000)
    touch(grace, 102_000)
    assert grace.until(VISIBILITY_MS) == 0


def test_a_pause_before_the_first_contact_changes_nothing() -> None:
    grace = Grace(LONGEST_MS, OUTAGE_MS)
    grace.paused(100_900, 100_000)
    touch(grace, 101_000)
    assert grace.until(VISIBILITY_MS) == 0


def test_failures_before_the_first_contact_are_no_outage() -> None:
    grace = Grace(LONGEST_MS, OUTAGE_MS)
    fail(grace, 1_000, 60_000)
    touch(grace, 60_500)
    assert grace.until(VISIBILITY_MS) == 0


def test_failures_that_contact_ended_are_forgotten() -> None:
    grace = in_contact(1_000)
    fail(grace, 2_000)
    touch(grace, 3_000)
    fail(grace, 11_000)  # the one failure since
    touch(grace, 12_000)
    assert grace.until(VISIBILITY_MS) == 0


def test_a_second_outage_starts_a_second_wait() -> None:
    grace = in_contact(1_000)
    for began_ms in (2_000, 50_000):
        fail(grace, began_ms, began_ms + 8_000)
        touch(grace, began_ms + 9_000)
    assert grace.until(VISIBILITY_MS) == 59_000 + VISIBILITY_MS


def test_a_server_that_has_just_started_starts_a_wait_from_its_start() -> None:
    grace = in_contact(60_000)
    grace.server_uptime(60_000, uptime_ms=4_000)
    assert grace.until(VISIBILITY_MS) == 56_000 + VISIBILITY_MS


def test_a_server_that_is_up_for_long_starts_none() -> None:
    grace = in_contact(60_000)
    grace.server_uptime(60_000, uptime_ms=86_400_000)
    assert grace.until(VISIBILITY_MS) == 0


def test_uptime_in_whole_seconds_does_not_prolong_the_wait() -> None:
    grace = Grace(LONGEST_MS, OUTAGE_MS)
    grace.server_uptime(60_000, uptime_ms=4_000)
    grace.server_uptime(60_999, uptime_ms=4_000)  # still the same second
    assert grace.until(VISIBILITY_MS) == 56_000 + VISIBILITY_MS


def test_a_server_that_started_again_starts_the_wait_again() -> None:
    grace = Grace(LONGEST_MS, OUTAGE_MS)
    grace.server_uptime(60_000, uptime_ms=4_000)
    grace.server_uptime(90_000, uptime_ms=1_000)
    assert grace.until(VISIBILITY_MS) == 89_000 + VISIBILITY_MS


@pytest.mark.parametrize("jump_ms", [CLOCK_JUMP_MS + 1, -CLOCK_JUMP_MS - 1], ids=["forward", "back"])
def test_a_jump_of_the_servers_clock_starts_a_wait(jump_ms: int) -> None:
    grace = in_contact(1_000)
    grace.contact(4_000, SERVER_OFFSET_MS + 4_000 + jump_ms)
    assert grace.until(VISIBILITY_MS) == 4_000 + VISIBILITY_MS


def test_a_clock_that_drifts_within_the_tolerance_starts_none() -> None:
    grace = in_contact(1_000)
    for step in range(1, 100):
        grace.contact(1_000 + step * 3_000, SERVER_OFFSET_MS + 1_000 + step * 3_000 + step * 100)
    assert grace.until(VISIBILITY_MS) == 0


def test_an_answer_that_was_read_late_tells_nothing_of_the_servers_clock() -> None:
    grace = in_contact(1_000)
    grace.contact(60_000, None)
    touch(grace, 63_000)
    assert grace.until(VISIBILITY_MS) == 0


def test_a_jump_behind_an_answer_that_was_read_late_is_noticed_by_the_next() -> None:
    grace = in_contact(1_000)
    grace.contact(60_000, None)
    grace.contact(63_000, SERVER_OFFSET_MS + 63_000 + CLOCK_JUMP_MS + 1)
    assert grace.until(VISIBILITY_MS) == 63_000 + VISIBILITY_MS


def test_the_wait_is_announced_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    grace = in_contact(1_000)
    fail(grace, 2_000, 9_000)
    touch(grace, 10_000)
    touch(grace, 13_000)
    assert caplog.record_tuples == [
        (
            "workers.runtime.grace",
            logging.WARNING,
            "Redis was out of reach: recovery waits up to 30.0 s, so that live workers come first",
        )
    ]


def test_it_is_known_what_recovery_waits_after() -> None:
    grace = in_contact(1_000)
    assert grace.why == ""
    grace.server_uptime(2_000, 500)
    assert grace.why == "Redis has just started"
    fail(grace, 3_000, 9_000)
    touch(grace, 10_000)
    assert grace.why == "Redis was out of reach"


# ---- a process that is new


@pytest.mark.parametrize(("visibility_ms", "wait_ms"), [(VISIBILITY_MS, LONGEST_FIRST_WAIT_MS), (1_500, 500), (0, 0)])
def test_who_is_new_lets_live_workers_come_first_whatever_happened_before(visibility_ms: int, wait_ms: int) -> None:
    assert in_contact(1_000, 4_000).begins_ms(visibility_ms) == 1_000 + wait_ms


def test_an_outage_makes_nobody_new() -> None:
    grace = in_contact(1_000)
    fail(grace, 4_000, 8_000)
    touch(grace, 9_000)
    assert grace.begins_ms(VISIBILITY_MS) == 1_000 + LONGEST_FIRST_WAIT_MS


def test_who_has_heard_nothing_yet_has_nothing_to_wait_from() -> None:
    assert Grace(LONGEST_MS, OUTAGE_MS).begins_ms(VISIBILITY_MS) == 0


# ---- how long a call is good for

COUNTS_MS = VISIBILITY_MS // OUTAGE_PART


def test_in_contact_a_call_may_wait_for_as_long_as_ever() -> None:
    assert in_contact(1_000).call_valid_ms(VISIBILITY_MS, 1_000 + COUNTS_MS - CALL_VALID_MS) == CALL_VALID_MS


def test_before_anything_was_heard_a_call_is_no_worse_than_another() -> None:
    assert Grace(LONGEST_MS, OUTAGE_MS).call_valid_ms(VISIBILITY_MS, 100_000) == CALL_VALID_MS


@pytest.mark.parametrize(
    ("after_ms", "valid_ms"),
    [(100, CALL_VALID_MS), (COUNTS_MS - 500, 500), (COUNTS_MS, 0), (COUNTS_MS + 700, -700)],
)
def test_a_call_made_out_of_contact_is_good_until_the_outage_would_count(after_ms: int, valid_ms: int) -> None:
    grace = in_contact(1_000)
    fail(grace, 1_050)
    assert grace.call_valid_ms(VISIBILITY_MS, 1_000 + after_ms) == valid_ms


def test_the_loss_of_contact_that_always_counts_ends_it_too() -> None:
    grace = in_contact(1_000)
    fail(grace, 1_050)
    assert grace.call_valid_ms(3_600_000, 1_000 + OUTAGE_MS - 10) == 10


def test_where_nothing_failed_a_call_may_take_a_moment_however_long_nothing_was_heard() -> None:
    assert in_contact(1_000).call_valid_ms(VISIBILITY_MS, 1_000 + 3 * COUNTS_MS) == LEAST_VALID_MS
    assert in_contact(1_000).call_valid_ms(300, 1_000) == LEAST_VALID_MS


def test_after_a_pause_of_our_own_contact_is_as_fresh_as_before() -> None:
    grace = in_contact(1_000)
    grace.paused(61_000, 60_000)
    assert grace.call_valid_ms(VISIBILITY_MS, 61_000) == CALL_VALID_MS


def test_contact_makes_calls_good_again() -> None:
    grace = in_contact(1_000)
    fail(grace, 2_000, 6_000)
    touch(grace, 7_000)
    assert grace.call_valid_ms(VISIBILITY_MS, 7_000) == CALL_VALID_MS
