"""When recovery waits because it was not allowed, and that no right that is missing for good holds it back for good."""

from workers.runtime.denials import RECOVERING, Denials

WAIT_MS = 30_000
OTHER = "moving what is due"


def test_where_everything_is_allowed_nothing_waits_and_calls_are_meant() -> None:
    denials = Denials()
    for part in (RECOVERING, OTHER):
        denials.answered(part, 1_000)
    assert (denials.is_open, denials.until(WAIT_MS)) == (False, 0)


def test_what_was_denied_asks_for_nothing_until_it_is_answered_and_then_waits() -> None:
    denials = Denials()
    denials.denied(RECOVERING)
    denials.denied(RECOVERING)
    assert (denials.is_open, denials.until(WAIT_MS)) == (True, 0)
    denials.answered(RECOVERING, 5_000)
    assert (denials.is_open, denials.until(WAIT_MS)) == (False, 5_000 + WAIT_MS)
    denials.answered(RECOVERING, 9_000)
    assert denials.until(WAIT_MS) == 5_000 + WAIT_MS


def test_what_was_denied_to_another_part_was_perhaps_denied_to_workers() -> None:
    denials = Denials()
    denials.denied(OTHER)
    assert denials.is_open
    denials.answered(OTHER, 5_000)
    assert (denials.is_open, denials.until(WAIT_MS)) == (False, 5_000 + WAIT_MS)


def test_a_part_that_is_denied_for_good_makes_recovery_wait_once() -> None:
    denials = Denials()
    denials.denied(OTHER)
    denials.answered(RECOVERING, 5_000)
    for _ in range(3):
        denials.denied(OTHER)
        denials.answered(RECOVERING, 9_000)
    assert (denials.is_open, denials.until(WAIT_MS)) == (False, 5_000 + WAIT_MS)


def test_a_part_that_works_again_may_be_denied_anew() -> None:
    denials = Denials()
    denials.denied(OTHER)
    denials.answered(OTHER, 5_000)
    denials.denied(OTHER)
    assert denials.is_open
    denials.answered(RECOVERING, 9_000)
    assert denials.until(WAIT_MS) == 9_000 + WAIT_MS


def test_an_answer_to_a_part_that_was_not_denied_says_nothing_of_the_others() -> None:
    denials = Denials()
    denials.denied(RECOVERING)
    denials.answered(OTHER, 5_000)
    assert (denials.is_open, denials.until(WAIT_MS)) == (True, 0)
