"""Asks the questions, and keeps the answers as plain rows: what the page and the JSON file are made of."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from reaper.pipeline.analysis.activity import span
from reaper.pipeline.report.queries import LISTED, Shelf, Tables, questions

Row = dict[str, Any]
Rows = list[Row]

VERSION = 1
"""Of the JSON."""
_PERIODS_MS = [unit * n for unit, ns in (
    (1_000, (1, 2, 5, 10, 30)), (60_000, (1, 2, 5, 10, 30)), (3_600_000, (1, 2, 6, 12)), (86_400_000, (1, 7, 30, 365)),
) for n in ns]  # fmt: skip
MOST_PERIODS = 120
"""Points of a course over time."""
AT_A_TIME = 4


@dataclass(slots=True)
class Findings:
    """Everything the report knows."""

    about: dict[str, Any]
    """Where it comes from: lake, scope, when it was made."""
    tables: dict[str, Rows]
    """The answers, by the names of `queries.questions`, and ``extents``."""
    live: dict[str, Any] | None = None
    """Where unsettled jobs were found in Redis; None where nobody has looked."""
    advice: dict[str, Any] = field(default_factory=dict)
    """Which visibility timeouts to set, as `advice.fragment.as_json` writes it."""
    settings: str = ""
    """The same as settings that ``reaper run --config`` reads."""

    def total(self, table: str, column: str, **only: object) -> int:
        """Add up a column, of the rows that are as ``only`` says."""
        rows = (row for row in self.tables[table] if all(row[name] == value for name, value in only.items()))
        return sum(row[column] or 0 for row in rows)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {"version": VERSION, **self.about, "tables": self.tables, "live": self.live, "advice": self.advice}


def choose_period(span_ms: int) -> int:
    """Return how long a point of a course over time should last, in ms."""
    return next((period for period in _PERIODS_MS if span_ms <= period * MOST_PERIODS), _PERIODS_MS[-1])


def ask(tables: Tables, about: Mapping[str, Any], shelf: Shelf, tell: Callable[[str], None]) -> Findings:
    """Ask all questions, some at a time: most have little to compute, and much to wait for. ``tell``: how far it is."""
    tell("counting events")
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        spanned = threads.submit(span, tables.events)

        def period_ms() -> int:
            first_ms, last_ms = spanned.result()
            return choose_period(last_ms - first_ms)

        pending: dict[Future[Rows], str] = {}
        for name, question in questions(tables, period_ms, shelf.keep, threads.submit):
            pending[threads.submit(_rows, question)] = name
            tell(f"{len(pending)} questions asked: {name.replace('_', ' ')}")
        answers: dict[str, Rows] = {}
        for number, answer in enumerate(as_completed(pending), start=1):
            answers[pending[answer]] = answer.result()
            tell(f"{number} of {len(pending)} questions answered: {pending[answer].replace('_', ' ')}")
    first_ms, last_ms = spanned.result()
    times = {"first_ms": first_ms, "last_ms": last_ms, "period_ms": period_ms(), "listed_at_most": LISTED}
    events = sum(row["events"] for row in answers["extents"])
    return Findings({**about, **times, "events": events}, {name: answers[name] for name in pending.values()})


def _rows(question: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in question.collect()]
