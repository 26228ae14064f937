"""The recoveries that an observer would have made, and whether they would have been right."""

from reaper.recovery.verdict import MOST_FOLLOWED, Verdict

ONE, TWO = b"1-0", b"2-0"


def overdue(verdict: Verdict, entry_id: bytes = ONE, consumer: bytes = b"web", at_ms: int = 40_000) -> bool:
    """It was handed out at 0."""
    return verdict.found(entry_id, consumer, at_ms, at_ms, is_overdue=True)


def test_a_delivery_counts_once_however_often_it_is_looked_at() -> None:
    verdict = Verdict(0)
    assert [overdue(verdict, at_ms=at_ms) for at_ms in (30_000, 60_000, 90_000)] == [True, False, False]
    assert (verdict.overdue, len(verdict.followed), verdict.false_alarms) == (1, 1, 0)


def test_a_delivery_that_goes_with_its_owner_was_a_false_alarm_and_its_age_would_have_been_the_timeout() -> None:
    verdict = Verdict(0)
    for entry_id in (ONE, TWO):
        overdue(verdict, entry_id)
    verdict.gone([ONE, b"3-0"], 61_000)
    verdict.gone([TWO], 55_000)
    assert verdict == Verdict(0, overdue=2, false_alarms=2, slowest_ms=61_000)


def test_a_delivery_that_another_consumer_has_was_recovered_and_may_fall_overdue_again() -> None:
    verdict = Verdict(0)
    overdue(verdict)
    assert not verdict.found(ONE, b"other", 10, 50_000, is_overdue=False)
    assert overdue(verdict, consumer=b"other", at_ms=90_000)
    assert overdue(verdict, consumer=b"third", at_ms=120_000)
    verdict.gone([ONE], 130_000)
    assert verdict == Verdict(0, overdue=3, false_alarms=1, slowest_ms=130_000)


def test_a_delivery_that_its_own_consumer_reads_again_is_no_false_alarm() -> None:
    verdict = Verdict(0)
    overdue(verdict)
    verdict.found(ONE, b"web", 10, 50_000, is_overdue=False)
    verdict.gone([ONE], 51_000)
    assert verdict == Verdict(0, overdue=1)


def test_it_stays_small() -> None:
    verdict = Verdict(0)
    for number in range(MOST_FOLLOWED + 5):
        overdue(verdict, b"%d-0" % number)
    assert (verdict.overdue, len(verdict.followed)) == (MOST_FOLLOWED, MOST_FOLLOWED)
