"""The verdict on what a handler raised or returned: its delay, its error text, its traceback."""

from datetime import timedelta

import pytest

from tests.workers.scene import make_job
from workers import Job, Reject, Retry
from workers.backoff import AT_ONCE, Backoff
from workers.loop.execution import (
    MAX_TRACEBACK_BYTES,
    REASON_MAX_DELIVERIES,
    judge,
)
from workers.protocol.calls.moves import Outcome, Verdict
from workers.runtime.user_code import MAX_TEXT, describe

BACKOFF = Backoff(base_ms=1_000, cap_ms=60_000, uncounted_max_age_ms=3_600_000)


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x"), "ValueError: x"),
        (ValueError(), "ValueError"),
        (UnreadableError(), "UnreadableError: (its message could not be read)"),
        (OSError("caf\udce9"), "OSError: caf\\udce9"),
    ],
)
def test_errors_are_described_in_text_that_redis_accepts(error: Exception, text: str) -> None:
    assert describe(error) == text
    assert describe(error).encode()
    assert len(describe(ValueError("x" * 10 * MAX_TEXT))) == MAX_TEXT


# ---- when it runs again


def raised(error: Exception) -> Exception:
    """Return ``error`` with a traceback."""
    with pytest.raises(type(error)) as caught:
        throw(error)
    return caught.value


def throw(error: Exception) -> None:
    raise error


def failed_job(failures: int, waits: int = 0, age_ms: int = 250) -> Job:
    """Return a job in its delivery number ``failures`` that is ``age_ms`` old."""
    numbers = {b"deliveries": failures - 1, b"waits": waits, b"first_ms": 1_700_000_000_250 - age_ms}
    flat = [word for name, number in numbers.items() for word in (b"reaper." + name, b"%d" % number)]
    return make_job(*flat, limit=1_000)


@pytest.mark.parametrize("answer", [ValueError("no"), Retry("later")], ids=["exception", "retry"])
def test_a_failed_job_backs_off_by_its_deliveries(answer: Exception) -> None:
    delays = {judge(failed_job(3), answer, BACKOFF).delay_ms for _ in range(50)}
    assert max(delays) <= BACKOFF.longest_ms(3) == 4_000
    assert len(delays) > 1


def test_a_retry_that_does_not_count_backs_off_by_its_waits() -> None:
    verdicts = [judge(failed_job(2, waits=5), Retry("bank", counts=False), BACKOFF) for _ in range(50)]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.RETRY}
    assert 2_000 < max(verdict.delay_ms for verdict in verdicts) <= BACKOFF.longest_ms(6) == 32_000


@pytest.mark.parametrize(("delay", "delay_ms"), [(0, 0), (1.5, 1_500), (timedelta(minutes=2), 120_000)])
@pytest.mark.parametrize("counts", [True, False])
def test_a_retry_may_say_when(delay: float | timedelta, delay_ms: int, counts: bool) -> None:
    verdict = judge(failed_job(1), Retry("later", delay=delay, counts=counts), BACKOFF)
    assert verdict == Verdict(
        Outcome.NACK if counts else Outcome.RETRY, REASON_MAX_DELIVERIES, "later", delay_ms=delay_ms
    )


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e12, timedelta(seconds=-1)])
def test_a_delay_that_is_none_is_rejected_where_it_is_written(delay: float | timedelta) -> None:
    with pytest.raises(ValueError, match="delay cannot be"):
        Retry(delay=delay)


def test_the_retries_of_an_old_job_count_whatever_it_says() -> None:
    young, old = failed_job(1, age_ms=3_600_000), failed_job(1, age_ms=3_600_001)
    outcomes = [judge(job, Retry(counts=False), BACKOFF).outcome for job in (young, old)]
    assert outcomes == [Outcome.RETRY, Outcome.NACK]


# ---- tracebacks


@pytest.mark.parametrize("answer", [ValueError("no"), Retry("later"), Reject("never")])
def test_an_exception_keeps_its_traceback(answer: Exception) -> None:
    trace = judge(make_job(), raised(answer), AT_ONCE).traceback
    assert trace.startswith("Traceback (most recent call last)")
    assert trace.endswith(f"{answer}\n")
    assert "in throw" in trace


def test_a_long_traceback_keeps_its_end() -> None:
    trace = judge(make_job(), raised(ValueError("é" * 10_000 + " the end")), AT_ONCE).traceback
    assert len(trace.encode()) in (MAX_TRACEBACK_BYTES - 1, MAX_TRACEBACK_BYTES)
    assert trace.endswith("é the end\n")


def test_a_rejection_tells_of_the_error_behind_it() -> None:
    rejection = Reject("malformed")
    rejection.__cause__ = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert judge(make_job(), rejection).error.startswith("UnicodeDecodeError: 'utf-8' codec can't decode")
