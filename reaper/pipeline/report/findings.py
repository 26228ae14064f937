"""Asks the questions, and keeps the answers as plain rows: what the page and the JSON file are made of."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from reaper.pipeline.analysis.activity import extent
from reaper.pipeline.report.errors import NoAnswersError
from reaper.pipeline.report.queries import LISTED, Question, Shelf, Tables, choose_period, questions
from reaper.pipeline.spark.collecting import collect_rows

Row = dict[str, Any]
Rows = list[Row]

VERSION = 1
"""Of the JSON."""
AT_A_TIME = 4
MOST_UNANSWERED = 3
"""Where more questions fail, Spark does, and there is no page to be had."""


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
    """Which visibility timeouts to set, as `advice.words.as_json` writes it."""

    def total(self, table: str, column: str, **only: object) -> int:
        """Add up a column, of the rows that are as ``only`` says."""
        rows = (row for row in self.tables[table] if all(row[name] == value for name, value in only.items()))
        return sum(row[column] or 0 for row in rows)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {"version": VERSION, **self.about, "tables": self.tables, "live": self.live, "advice": self.advice}


def ask(tables: Tables, about: Mapping[str, Any], shelf: Shelf, tell: Callable[[str], None]) -> Findings:
    """Ask all questions, some at a time: most have little to compute, and much to wait for. ``tell``: how far it is.

    Raises NoAnswersError where more than `MOST_UNANSWERED` questions were not answered.
    """
    tell("counting events")
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        reach = threads.submit(extent, tables.events)
        pending: dict[Future[Rows], str] = {}
        for question in questions(tables, reach.result, shelf.keep, threads.submit):
            pending[threads.submit(_answer, question)] = question.name
            tell(f"{len(pending)} questions asked: {question.name.replace('_', ' ')}")
        unanswered: dict[str, str] = {}
        for number, answer in enumerate(as_completed(pending), start=1):
            if failure := _failure(answer):
                unanswered[pending[answer]] = failure
            tell(f"{number} of {len(pending)} questions answered: {pending[answer].replace('_', ' ')}")
    if len(unanswered) > MOST_UNANSWERED:
        raise NoAnswersError(len(unanswered), len(pending), next(iter(unanswered.values())))
    answers = {name: [] if name in unanswered else answer.result() for answer, name in pending.items()}
    found = reach.result()
    told = {
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
        "period_ms": choose_period(found.span_ms),
        "listed_at_most": LISTED,
        "events": found.events,
        "unanswered": unanswered,
    }
    return Findings({**about, **told}, answers)


def _answer(question: Question) -> Rows:
    """Return the rows in order: nulls first, as Spark has them."""
    rows = collect_rows(question.answer)
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in question.order])


def _failure(answer: "Future[Rows]") -> str:
    """Return why Spark has not answered, in a line: a page without one answer that says so is worth more than none."""
    error = answer.exception()
    if error is None:
        return ""
    if not isinstance(error, PySparkException | Py4JError | OSError | EOFError):
        raise error
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
