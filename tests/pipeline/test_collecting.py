"""A question that Spark does not answer takes no page away, unless many stay open."""

from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from reaper.pipeline.analysis.activity import Extent
from reaper.pipeline.report import findings, queries
from reaper.pipeline.report.errors import NoAnswersError
from reaper.pipeline.report.findings import MOST_UNANSWERED, Findings
from reaper.pipeline.report.queries import Shelf, Tables
from workers.protocol.errors import StreamReaperError


class Answer:
    """A row."""

    def asDict(self, *, recursive: bool) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"n": 1, "recursive": recursive}


class Question:
    """A question that fails some times before it is answered."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked = 0

    def collect(self) -> list[Answer]:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return [Answer()]


def test_too_few_answers_are_a_sentence() -> None:
    error = NoAnswersError(5, 28, "out of memory")
    assert isinstance(error, StreamReaperError)
    assert str(error) == "Spark did not answer 5 of 28 questions: out of memory"


def ask_of(monkeypatch: pytest.MonkeyPatch, *order: str, **asked: Question) -> Findings:
    """Ask these questions instead of the report's, their rows in this order."""
    monkeypatch.setattr(findings, "extent", lambda _: Extent(1_000, 61_000, 7))
    nothing = cast("Any", None)
    whole = [queries.Question(name, cast("DataFrame", question), order) for name, question in asked.items()]
    monkeypatch.setattr(findings, "questions", lambda *_: iter(whole))
    return findings.ask(Tables(nothing, nothing, nothing, nothing), {"lake": "l"}, Shelf(), lambda _: None)


def test_a_question_that_stays_open_takes_no_page_away(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask_of(monkeypatch, one=Question(), other=Question(AnalysisException("no such column\nat line 1")))
    assert found.tables == {"one": [{"n": 1, "recursive": True}], "other": []}
    assert found.about["unanswered"] == {"other": "no such column"}
    assert (found.about["first_ms"], found.about["events"], found.about["period_ms"]) == (1_000, 7, 1_000)


def test_rows_are_in_order_as_spark_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"group": "b", "n": 1}, {"group": None, "n": 3}, {"group": "b", "n": None}, {"group": "a", "n": 2}]
    monkeypatch.setattr(findings, "collect_rows", lambda _: rows)
    found = ask_of(monkeypatch, "group", "n", one=Question())
    assert found.tables["one"] == [rows[1], rows[3], rows[2], rows[0]]
    assert ask_of(monkeypatch, one=Question()).tables["one"] == rows


def test_where_many_stay_open_there_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {f"q{number}": Question(AnalysisException("no disk")) for number in range(MOST_UNANSWERED + 1)}
    with pytest.raises(NoAnswersError, match="did not answer 4 of 5 questions: no disk"):
        ask_of(monkeypatch, **asked, answered=Question())


def test_a_mistake_of_ours_is_no_open_question(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        ask_of(monkeypatch, one=Question(ZeroDivisionError()))
