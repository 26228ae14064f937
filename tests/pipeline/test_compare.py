"""A comparison from end to end: real drills, and the written page."""

import json
from functools import partial
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from reaper.cli.main import main
from reaper.pipeline.compare import command
from reaper.pipeline.compare.findings import conclude
from reaper.pipeline.compare.play import DrillFailedError, Drills, Plan, play
from reaper.pipeline.compare.scenarios import Scenario
from tests.docs.json_page import check

pytestmark = pytest.mark.processes

QUICK = Scenario(
    "quick", "A quick crash", ("kill-worker@0.6",), options=("--visibility-timeout", "1", "--workers", "2")
)
SMALL = ("--limit", "60", "--reapers", "1")


@pytest.mark.matrix
def test_drills_are_played_judged_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan([QUICK], ("reaper/stream", "embedded/in-place", "none"), 1, SMALL)
    folder = tmp_path / "drills"
    folder.mkdir()
    monkeypatch.setenv("REAPER_REDIS_URL", "redis://127.0.0.1:1")  # each drill starts a Redis of its own

    drills = anyio.run(partial(play, plan, folder, lambda _: None))
    comparison = conclude(drills, "2026-11-20T16:00:00+00:00")
    plan = drills.plan
    assert plan.modes == ["reaper/stream", "none"], "the packaged server knows no CLAIM"
    assert comparison.overall[-1] == drills.left_out[0]
    assert drills.left_out[0].startswith(
        "embedded/in-place was not played: it needs XREADGROUP … CLAIM (Redis 8.4), which "
    )

    (quick,) = comparison.found
    assert {mode: quick.table["lost"][mode].value for mode in plan.modes} == dict.fromkeys(plan.modes, 0)
    ledger = next(one.report for one in drills.played if one.mode == "reaper/stream")
    assert ledger["second_starts"]

    async def as_before(*_: object) -> Drills:
        return drills

    monkeypatch.setattr(command, "play", as_before)
    ended = CliRunner().invoke(main, ["compare", "-o", "json", "--output", str(tmp_path / "quick.html")])
    written = json.loads((tmp_path / "quick.json").read_text())
    assert json.loads(ended.stdout) == written
    check("reaper compare", written)
    assert written["scenarios"][0]["figures"]["lost"]["reaper/stream"]["value"] == 0
    assert "A quick crash" in (tmp_path / "quick.html").read_text()
    assert str(tmp_path) not in (tmp_path / "quick.json").read_text()


def test_a_drill_that_cannot_be_played_says_what_it_printed(tmp_path: Path) -> None:
    plan = Plan([QUICK], ("reaper/stream",), 1, ("--trace", str(tmp_path / "nowhere.csv")))
    with pytest.raises(DrillFailedError, match="cannot read --trace"):
        anyio.run(partial(play, plan, tmp_path, lambda _: None))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--trace", "gone.csv"), "cannot read --trace gone.csv: No such file or directory."),
        (("--trace", "/dev/zero"), "--trace /dev/zero, line 1 has more than"),
        (("--speedup", "1e-300"), "comes more than a day after the first one. Replay it faster (--speedup)"),
        (("--speedup", "0.01"), "s, but a drill of the comparison at most 900 s. Replay them faster (--speedup)"),
        (("--decode-ms", "8e7"), "takes more than a day. Lower --prefill-ms or --decode-ms"),
        (("--prefill-ms", "1e300"), "--prefill-ms"),
        (("--limit", "99999999999"), "--limit is 99999999999 jobs, but at most 1000000 are generated. Lower it."),
        (("--repeat", "99999999999"), "invalid value for '--repeat': 99999999999 is not in the range"),
        (("--fault-at", "1e300"), "invalid value for '--fault-at': '1e300' is not in the range"),
        (("--files", "loop/drills"), "cannot use --files loop/drills: Too many levels of symbolic links."),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_cannot_be_played_is_a_sentence_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setattr(command, "play", lambda *_: pytest.fail("it is played"))
    answer = CliRunner().invoke(main, ["compare", *words])
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert sentence in answer.stderr


def test_the_command_rejects_what_it_does_not_know() -> None:
    answer = CliRunner().invoke(main, ["compare", "--scenario", "poisson"])
    assert (answer.exit_code, "Did you mean 'poison'" in answer.stderr) == (2, True)
