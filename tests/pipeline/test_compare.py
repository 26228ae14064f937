"""A comparison from end to end: real drills, their journals on Spark, and what is written of them."""

import json
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import anyio
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from reaper.cli.main import main
from reaper.pipeline.compare import command
from reaper.pipeline.compare.findings import conclude
from reaper.pipeline.compare.journals import ingest_journals, read_journals
from reaper.pipeline.compare.play import DrillFailedError, Plan, play
from reaper.pipeline.compare.scenarios import Scenario
from reaper.pipeline.settings import PipelineSettings
from tests.docs.json_page import check

pytestmark = pytest.mark.processes

QUICK = Scenario("quick", "A quick crash", ("kill-workers:1@0.6",), ("--visibility-timeout", "1", "--workers", "2"))
SMALL = ("--limit", "60", "--reapers", "1")


@pytest.mark.matrix
def test_drills_are_played_ingested_judged_and_written_down(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan([QUICK], ("reaper/stream", "claim", "published"), 1, SMALL)
    settings = PipelineSettings(lake=str(tmp_path / "lake"))
    folder = tmp_path / "drills"
    folder.mkdir()

    def ingest(url: str) -> None:
        ingest_journals(spark, settings.model_copy(update={"redis_url": url}))

    drills = anyio.run(partial(play, plan, folder, lambda _: None, ingest))
    told = read_journals(spark, settings.lake, drills.played)
    comparison = conclude(drills, told, "2026-11-20T16:00:00+00:00")
    plan = drills.plan
    assert plan.modes == ["reaper/stream", "published"], "the packaged server knows no CLAIM"
    assert comparison.overall[-1] == drills.left_out[0]
    assert drills.left_out[0].startswith("claim was not played: it needs XREADGROUP … CLAIM (Redis 8.4), which ")

    (quick,) = comparison.found
    assert {mode: quick.table["lost"][mode].value for mode in plan.modes} == dict.fromkeys(plan.modes, 0)
    ledger = next(one.report for one in drills.played if one.mode == "reaper/stream")
    (journal,) = quick.journals["reaper/stream"]
    assert "published" not in quick.journals  # it keeps no journal
    # What the journal calls recovered is what the ledger does; never started is what waited in the dead worker.
    assert journal["overshoot"]["n"] == ledger["recovered"]
    assert journal["overshoot"]["max"] / 1000 == ledger["overshoot_s"]["max"]
    assert journal["second_starts"] >= len(ledger["second_starts"])
    # What a killed worker had done and not settled, only its handler knew.
    settled_twice = [one for one in ledger["duplicates"] if one["cause"] != "worker_killed"]
    assert journal["duplicates"] == len(settled_twice)

    monkeypatch.setattr(command, "_play_and_read", lambda *_: comparison)
    ended = CliRunner().invoke(main, ["compare", "--json", "--output", str(tmp_path / "quick.html")])
    written = json.loads((tmp_path / "quick.json").read_text())
    assert json.loads(ended.stdout) == written
    check("reaper compare", written)
    assert written["scenarios"][0]["figures"]["lost"]["reaper/stream"] == {"value": 0, "low": 0, "high": 0}
    assert "A quick crash" in (tmp_path / "quick.html").read_text()
    assert "![" in (tmp_path / "quick.md").read_text()
    drawn = ET.fromstring((tmp_path / "quick.svg").read_text())  # noqa: S314 - we wrote it
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--" not in (tmp_path / "quick.svg").read_text()
    assert str(tmp_path) not in (tmp_path / "quick.json").read_text()


def test_a_drill_that_cannot_be_played_says_what_it_printed(tmp_path: Path) -> None:
    plan = Plan([QUICK], ("reaper/stream",), 1, ("--trace", str(tmp_path / "nowhere.csv")))
    with pytest.raises(DrillFailedError, match=r"nowhere\.csv cannot be read"):
        anyio.run(partial(play, plan, tmp_path, lambda _: None, lambda _: None))


def test_the_command_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    answer = CliRunner().invoke(main, ["compare", "--scenario", "poisson"])
    assert (answer.exit_code, "did you mean 'poison'" in answer.stderr) == (2, True)
    (tmp_path / "taken").write_text("")
    answer = CliRunner().invoke(main, ["compare", "--files", str(tmp_path)])
    assert (answer.exit_code, "is not empty" in answer.stderr) == (2, True)
