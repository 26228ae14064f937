"""Answers that could not be handed over are asked for again; whatever else fails is told at once."""

from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import DataFrame

from reaper.pipeline.report.errors import NoAnswersError
from reaper.pipeline.spark.collecting import ATTEMPTS, collect_rows
from workers.protocol.errors import StreamReaperError

REFUSED = PySparkRuntimeError(errorClass="CANNOT_OPEN_SOCKET", messageParameters={"errors": "timed out"})


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


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("reaper.pipeline.spark.collecting.time.sleep", waited.append)
    return waited


@pytest.mark.parametrize("failure", [REFUSED, TimeoutError("timed out"), EOFError(), ConnectionResetError()])
def test_a_lost_connection_is_asked_again(failure: Exception, pauses: list[float]) -> None:
    question = Question(*[failure] * (ATTEMPTS - 1))
    assert collect_rows(cast("DataFrame", question)) == [{"n": 1, "recursive": True}]
    assert question.asked == ATTEMPTS
    assert pauses == [0.5, 1.0, 2.0, 4.0]


def test_in_the_end_the_failure_is_told(pauses: list[float]) -> None:
    question = Question(*[REFUSED] * ATTEMPTS)
    with pytest.raises(PySparkRuntimeError, match="CANNOT_OPEN_SOCKET"):
        collect_rows(cast("DataFrame", question))
    assert len(pauses) == ATTEMPTS - 1


@pytest.mark.parametrize(
    "failure",
    [
        AnalysisException("no such column"),
        PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}),
        ValueError("no"),
    ],
)
def test_what_is_wrong_with_the_question_is_not_asked_twice(failure: Exception) -> None:
    question = Question(failure)
    with pytest.raises(type(failure)):
        collect_rows(cast("DataFrame", question))
    assert question.asked == 1


def test_too_few_answers_are_a_sentence() -> None:
    error = NoAnswersError(5, 28, "out of memory")
    assert isinstance(error, StreamReaperError)
    assert str(error) == "Spark did not answer 5 of 28 questions: out of memory"
