"""A question that Spark does not answer takes no page away, unless many stay open."""

import pytest
from pyspark.sql import SparkSession

from reaper.pipeline.analysis.answers import Asked
from reaper.pipeline.analysis.asking import CHAINS, Asker, NoAnswersError
from reaper.pipeline.report.findings import tables_of
from tests.pipeline import stories
from tests.pipeline.questions import EVER, frames


def asked_without(spark: SparkSession, table: str, column: str, most_unanswered: int) -> Asked:
    """Ask about a lake in which a table has no such column."""
    tables = frames(spark, events=stories.CRASH)
    tables[table] = tables[table].drop(column)
    return Asker(spark, tables, EVER, embedded=True).ask(lambda _: None, most_unanswered=most_unanswered)


def test_a_question_that_stays_open_takes_no_page_away(spark: SparkSession) -> None:
    asked = asked_without(spark, "malformed", "reason", 1)
    assert list(asked.unanswered) == ["malformed"]
    assert "`reason` cannot be resolved" in asked.unanswered["malformed"]
    assert "\n" not in asked.unanswered["malformed"]
    tables = tables_of(asked.answers)
    assert tables["malformed"] == []
    assert [row["cause"] for row in tables["second_starts"]] == ["crash"]


def test_if_more_stay_open_there_is_a_sentence_and_no_page(spark: SparkSession) -> None:
    with pytest.raises(NoAnswersError, match=r"^Spark did not answer 1 of \d\d questions: .*`reason` cannot"):
        asked_without(spark, "malformed", "reason", 0)


def test_no_question_of_a_chain_is_answered_without_its_views(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Spark answers then would be about the lake that was asked before."""

    def fails(_asker: Asker, view: str) -> None:
        if view == "delivery":
            raise OSError("no space left on device")
        keep(_asker, view)

    keep = Asker.keep
    monkeypatch.setattr(Asker, "keep", fails)
    asked = Asker(spark, frames(spark), EVER, embedded=True).ask(lambda _: None, most_unanswered=5)
    assert asked.unanswered == dict.fromkeys(CHAINS["story", "delivery"], "no space left on device")
    assert asked.answers.keys() == {name for names in CHAINS.values() for name in names}
