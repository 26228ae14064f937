"""The exit codes of the commands, by the ends of acts."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from reaper.drill import cli
from reaper.drill.act import Ending
from reaper.drill.drill import DrillPlan
from reaper.drill.ledger import Ledger
from reaper.drill.meters import Usage
from reaper.drill.promises import Fate
from reaper.drill.recoveries import RECOVERIES, Recovery
from reaper.drill.redis_server import Server
from reaper.drill.stage import set_stage
from tests.docs.json_page import check

SERVER = Server("redis://127.0.0.1:1/0", "7", "no server")
LEDGER = Ledger(enqueued=1, fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 1})


@dataclass(slots=True)
class Theatre:
    """Each act ends well, except the bad ones that are named."""

    folder: Path
    bad: set[str] = field(default_factory=set)
    played: list[DrillPlan] = field(default_factory=list)

    def perform(
        self, plan: DrillPlan, _screen: object, *, closes: Callable[[Ending], None], **_told: object
    ) -> list[Ending]:
        self.played.append(plan)
        endings = [self._ending(plan, recovery) for recovery in plan.recoveries]
        for ending in endings:
            closes(ending)
        return endings

    def _ending(self, plan: DrillPlan, recovery: Recovery) -> Ending:
        folder = self.folder / str(len(self.played))
        stage = set_stage(SERVER, plan.settings, recovery, folder, ("drill", "reapers"))
        objections = ("1 job is lost",) if recovery.name in self.bad else ()
        return Ending(stage, 0.0, LEDGER, objections, Usage(), {}, 0)

    def exit_code(self, command: click.Command, *words: str) -> int:
        ended = CliRunner().invoke(command, list(words))
        assert isinstance(ended.exception, SystemExit | None), ended.exception
        return ended.exit_code


@pytest.fixture
def theatre(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Theatre:
    theatre = Theatre(tmp_path)
    monkeypatch.setattr(cli, "perform", theatre.perform)
    return theatre


@pytest.mark.parametrize(
    ("words", "played"),
    [
        ((), ["kill-worker", "poison", "kill-holder", "pause-holder"]),
        (("--limit", "450"), ["kill-worker", "poison"]),
        (("--limit", "60"), []),
        (("--limit", "60", "--fault", "kill-holder@8"), ["kill-holder"]),
    ],
    ids=["whole trace", "a part", "hardly any", "asked for"],
)
def test_faults_that_nobody_asked_for_come_while_jobs_do(theatre: Theatre, words: list[str], played: list[str]) -> None:
    assert theatre.exit_code(cli.drill, *words) == 0
    (plan,) = theatre.played
    assert [str(fault.kind) for fault in plan.settings.faults] == played


@pytest.mark.parametrize(
    ("bad", "code"), [(set(), 0), ({"none"}, 0), ({"reaper"}, 1), ({"embedded"}, 1), ({"reaper", "embedded"}, 1)]
)
def test_the_demo_fails_where_the_reaper_or_embedded_workers_do(theatre: Theatre, bad: set[str], code: int) -> None:
    theatre.bad = bad
    assert theatre.exit_code(cli.demo) == code
    (plan,) = theatre.played
    assert [recovery.name for recovery in plan.recoveries] == ["none", "reaper", "embedded"]


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_drill_fails_where_anything_is_wrong_in_any_mode(theatre: Theatre, recovery: str) -> None:
    assert theatre.exit_code(cli.drill, "--recovery", recovery) == 0
    theatre.bad = {recovery}
    assert theatre.exit_code(cli.drill, "--recovery", recovery) == 1


def test_options_reach_the_programme(theatre: Theatre) -> None:
    words = "--fault none --visibility-timeout 30 --no-bare-worker --quiet --keep-keys --limit 3"
    assert theatre.exit_code(cli.drill, *words.split(), "--redis-url", SERVER.url) == 0
    (plan,) = theatre.played
    settings = plan.settings
    assert (settings.faults, settings.bare_worker) == ((), False)
    assert (settings.ttl.total_seconds(), settings.scan.total_seconds(), settings.look_s) == (1.5, 0.5, 1.0)
    assert (settings.redis_url, settings.keep_keys) == (SERVER.url, True)
    assert len(plan.jobs) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--limit 0", "setting 'limit' (as flag --limit) is invalid. Input should be greater than or equal to 1."),
        ("--lease-ttl x", "is invalid. Write a duration, such as 30s, 5m or 24h"),
        ("--fault kill-worker", "cannot read --fault 'kill-worker'. Write it like 'kill-worker@4', for 4 seconds"),
        ("--trace nowhere.csv", "cannot read --trace nowhere.csv"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_sentence(theatre: Theatre, words: str, sentence: str) -> None:
    ended = CliRunner().invoke(cli.drill, words.split())
    assert (ended.exit_code, theatre.played) == (2, [])
    assert sentence in ended.stderr


def test_a_report_has_what_its_page_says(theatre: Theatre, tmp_path: Path) -> None:
    file = tmp_path / "drill.json"
    assert theatre.exit_code(cli.drill, "--output", str(file)) == 0
    check("reaper drill", json.loads(file.read_text(encoding="utf-8")))


def test_the_demos_report_has_every_act(theatre: Theatre, tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    assert theatre.exit_code(cli.demo, "--output", str(file)) == 0
    acts = json.loads(file.read_text(encoding="utf-8"))["acts"]
    assert [act["recovery"] for act in acts] == ["none", "reaper", "embedded"]
    check("reaper demo", {"acts": acts})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--policy", "x"), "Invalid value for '--policy': 'x' is not one of 'stream', 'in-place'."),
        (("--workers", "0"), "(as flag --workers) is invalid. Input should be greater than or equal to 1."),
        (("--reapers", "-1"), "(as flag --reapers) is invalid. Input should be greater than or equal to 0."),
        (("--reapers", "0"), "--recovery reaper needs reapers. Set --reapers to 1 or more."),
        (("--limit", "100000000000"), "--limit is 100000000000 jobs, but at most 1000000 are generated. Lower it."),
        (("--redis-url", "x"), "redis_url '***' cannot be used"),
        (("--speedup", "1e-300"), "job 2 of the trace comes more than a day after the first one"),
        (
            ("--prefill-ms", "1e300"),
            "--prefill-ms) is invalid. Input should be less than or equal to 86400000",
        ),
        (("--decode-ms", "8e7"), "takes more than a day. Lower --prefill-ms or --decode-ms"),
        (("--concurrency", "99999"), "(as flag --concurrency) is invalid. Input should be less than or equal to 10000"),
        (("--fault", "none", "--fault", "kill-worker@1"), "--fault none excludes other faults. Remove one of them."),
        (("--reapers", "1", "--fault", "pause-holder@1"), "--fault pause-holder needs a second reaper"),
        (("--keep-keys",), "--keep-keys needs a Redis of your own. Name it with --redis-url."),
        (
            ("--redis-url", SERVER.url, "--fault", "pause-redis@1+1"),
            "--fault pause-redis stops the server of the drill. Remove --redis-url.",
        ),
        (("--fault", "poison:1000000@1"), "cannot read --fault 'poison:1000000@1'. Write it like 'poison@4'"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_what_cannot_be_played_is_a_sentence_that_names_the_option_and_nothing_before_it(
    theatre: Theatre, words: tuple[str, ...], sentence: str
) -> None:
    ended = CliRunner().invoke(cli.drill, list(words))
    assert (ended.exit_code, ended.stdout, theatre.played) == (2, "", [])
    assert sentence in ended.stderr
