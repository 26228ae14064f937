"""What is remembered of a server's clock that is set, and what it does to idle times."""

from hypothesis import given
from hypothesis import strategies as st

from workers.protocol.calls import Step, clock_word
from workers.runtime.clock_steps import CLOCK_JUMP_MS, MOST_STEPS, ClockSteps, idle_without

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def true_idle(idle_ms: int, at_ms: int, steps: tuple[Step, ...]) -> int:
    """Take steps out of an idle time, as the scripts do."""
    return max(1, idle_without(steps, idle_ms, at_ms))


def test_the_first_look_and_small_differences_are_no_steps() -> None:
    clock = ClockSteps()
    seen = [clock.seen(now, START_MS + now + off) for now, off in ((0, 0), (1_000, CLOCK_JUMP_MS), (2_000, 0))]
    assert (seen, clock.ahead) == ([0, 0, 0], ())


def test_a_step_ahead_is_known_by_what_the_clock_would_have_shown() -> None:
    clock = ClockSteps()
    clock.seen(1_000, START_MS)
    assert clock.seen(3_000, START_MS + 2_000 + HOUR_MS) == HOUR_MS
    assert clock.ahead == (Step(START_MS + 2_000, HOUR_MS),)
    assert clock.seen(4_000, START_MS + 3_000 + HOUR_MS) == 0


def test_what_is_taken_back_does_not_count_any_more() -> None:
    clock = ClockSteps()
    clock.seen(0, START_MS)
    clock.seen(1_000, START_MS + 1_000 + HOUR_MS)
    clock.seen(2_000, START_MS + 2_000 + 3 * HOUR_MS)
    assert clock.seen(3_000, START_MS + 3_000 + 2 * HOUR_MS) == -HOUR_MS
    assert [step.by_ms for step in clock.ahead] == [HOUR_MS, HOUR_MS]
    clock.seen(4_000, START_MS + 4_000 - HOUR_MS)
    assert list(clock.ahead) == []
    clock.seen(5_000, START_MS + 5_000)
    assert [step.by_ms for step in clock.ahead] == [HOUR_MS]


def test_no_more_than_the_latest_are_remembered() -> None:
    clock = ClockSteps()
    for number in range(MOST_STEPS + 3):
        clock.seen(number, START_MS + number * HOUR_MS)
    assert len(clock.ahead) == MOST_STEPS
    assert clock.ahead[-1].before_ms == START_MS + (MOST_STEPS + 1) * HOUR_MS + 1


def test_a_call_says_until_when_it_may_run_and_what_was_set() -> None:
    assert clock_word(17, ()) == "17"
    assert clock_word(17, [Step(5, 6), Step(7, 8)]) == "17,5+6,7+8"


@given(
    st.lists(st.tuples(st.integers(0, 1_000_000), st.integers(CLOCK_JUMP_MS + 1, 10 * HOUR_MS)), max_size=MOST_STEPS),
    st.integers(0, 5_000_000),
)
def test_idle_times_are_true_whatever_the_clock_was_set_to_ahead(steps: list[tuple[int, int]], touched: int) -> None:
    """Looked at right before and right after each step, and once at the end."""
    clock, now, ahead = ClockSteps(), 0, 0
    shown = START_MS + touched if not steps else None
    clock.seen(0, START_MS)
    for wait, by in steps:
        if shown is None and touched < now + wait:
            shown = START_MS + touched + ahead
        now += wait
        clock.seen(now, START_MS + now + ahead)
        ahead += by
        clock.seen(now, START_MS + now + ahead)
    if shown is None:
        shown = START_MS + touched + ahead if touched >= now else START_MS + touched
    end = max(now, touched) + 1
    at = START_MS + end + ahead
    assert true_idle(at - shown, at, clock.ahead) == end - touched
