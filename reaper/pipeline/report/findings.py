"""Asks the questions, and keeps the answers as plain rows: what the page and the JSON file are made of."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from reaper.pipeline.analysis.activity import span
from reaper.pipeline.report.queries import LISTED, Shelf, Tables, choose_period, questions

Row = dict[str, Any]
Rows = list[Row]

VERSION = 1
"""Of the JSON."""
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


def ask(tables: Tables, about: Mapping[str, Any], shelf: Shelf, tell: Callable[[str], None]) -> Findings:
    """Ask all questions, some at a time: most have little to compute, and much to wait for. ``tell``: how far it is."""
    tell("counting events")
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        spanned = threads.submit(span, tables.events)

        def span_ms() -> int:
            first_ms, last_ms = spanned.result()
            return last_ms - first_ms

        pending: dict[Future[Rows], str] = {}
        for name, question in questions(tables, span_ms, shelf.keep, threads.submit):
            pending[threads.submit(_rows, question)] = name
            tell(f"{len(pending)} questions asked: {name.replace('_', ' ')}")
        answers: dict[str, Rows] = {}
        for number, answer in enumerate(as_completed(pending), start=1):
            answers[pending[answer]] = answer.result()
            tell(f"{number} of {len(pending)} questions answered: {pending[answer].replace('_', ' ')}")
    first_ms, last_ms = spanned.result()
    times = {
        "first_ms": first_ms,
        "last_ms": last_ms,
        "period_ms": choose_period(last_ms - first_ms),
        "listed_at_most": LISTED,
    }
    events = sum(row["events"] for row in answers["extents"])
    return Findings({**about, **times, "events": events}, {name: answers[name] for name in pending.values()})


def _rows(question: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in question.collect()]
