"""The answers of a lake. Pure."""

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Rows = list[Row]
Answers = dict[str, Rows]
"""Rows of each question, by its name."""

SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9995,
          0.9999)  # fmt: skip
"""Shares of the ``quantiles`` of an answer, ascending. Each is by nearest rank, so it is a value that occurred."""

MOST_PERIODS = 120
"""Points of a course over time."""
_PERIODS_MS = [unit * n for unit, ns in (
    (1_000, (1, 2, 5, 10, 30)), (60_000, (1, 2, 5, 10, 30)), (3_600_000, (1, 2, 6, 12)), (86_400_000, (1, 7, 30, 365)),
) for n in ns]  # fmt: skip


@dataclass(frozen=True)
class LakeAnswers:
    """The answers of a lake."""

    answers: Answers
    first_ms: int
    last_ms: int
    """The times of the first and the last event. 0 without events."""
    events: int
    period_ms: int
    """Length of a point of a course over time."""


def choose_period(span_ms: int) -> int:
    """Return the length of a point of a course over time, in ms."""
    return next((period for period in _PERIODS_MS if span_ms <= period * MOST_PERIODS), _PERIODS_MS[-1])
