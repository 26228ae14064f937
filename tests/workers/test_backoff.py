"""Delays between deliveries: they double, up to a cap, and full jitter spreads them."""

from hypothesis import given
from hypothesis import strategies as st

from workers.backoff import AT_ONCE, Backoff

HOUR_MS = 3_600_000
policies = st.builds(
    Backoff,
    base_ms=st.integers(0, HOUR_MS),
    cap_ms=st.integers(0, 24 * HOUR_MS),
    uncounted_max_age_ms=st.integers(0),
)
failures = st.integers(1, 1_000_000)


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base_ms=1_000, cap_ms=300_000, uncounted_max_age_ms=0)
    longest = [backoff.longest_ms(n) for n in range(1, 12)]
    doubled = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000]
    assert longest == [*doubled, 300_000, 300_000]


@given(backoff=policies, failures=failures, part=st.floats(0, 1))
def test_a_delay_is_the_jitters_part_of_the_longest(backoff: Backoff, failures: int, part: float) -> None:
    delay = backoff.delay_ms(failures, lambda: part)
    assert 0 <= delay <= backoff.longest_ms(failures) <= backoff.cap_ms
    assert delay == round(backoff.longest_ms(failures) * part)


@given(backoff=policies, failures=failures)
def test_the_longest_delay_never_shrinks_with_another_failure(backoff: Backoff, failures: int) -> None:
    assert backoff.longest_ms(failures) <= backoff.longest_ms(failures + 1)
    if backoff.longest_ms(failures + 1) < backoff.cap_ms:
        assert backoff.longest_ms(failures + 1) == 2 * backoff.longest_ms(failures)


@given(failures=failures)
def test_without_a_policy_what_failed_is_ready_at_once(failures: int) -> None:
    assert AT_ONCE.delay_ms(failures) == 0
