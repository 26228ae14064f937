"""What the commands make of how acts ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reaper.drill import cli
from reaper.drill.act import Outcome
from reaper.drill.drill import Programme
from reaper.drill.ledger import Fate, Ledger
from reaper.drill.redis_server import Server
from reaper.drill.stage import set_stage
from reaper.drill.usage import Usage
from workers.protocol.connection import commands_client

SERVER = Server("redis://127.0.0.1:1/0", "7", "no server", ours=False)
LEDGER = Ledger(enqueued=1, fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 1})


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Programme]:
    """Let every programme end well, but for acts that are named in the seed's place; return what was played."""
    programmes: list[Programme] = []

    def perform(programme: Programme, _screen: object, **_told: object) -> list[Outcome]:
        programmes.append(programme)
        return [_ended(programme, recovery.name, tmp_path) for recovery in programme.recoveries]

    monkeypatch.setattr(cli, "perform", perform)
    return programmes


BAD: set[str] = set()


def _ended(programme: Programme, name: str, folder: Path) -> Outcome:
    recovery = next(recovery for recovery in programme.recoveries if recovery.name == name)
    stage = set_stage(commands_client(SERVER.url), SERVER, programme.settings, recovery, folder, "0a")
    objections = ("1 jobs are lost",) if name in BAD else ()
    return Outcome(stage, 0.0, LEDGER, objections, Usage(), {}, 0)


@pytest.mark.parametrize(
    ("bad", "code"), [([], 0), (["none"], 0), (["reaper"], 1), (["embedded"], 1), (["reaper", "embedded"], 1)]
)
def test_the_demo_fails_where_the_reaper_or_embedded_workers_do(
    played: list[Programme], monkeypatch: pytest.MonkeyPatch, bad: Sequence[str], code: int
) -> None:
    monkeypatch.setattr("tests.drill.test_cli.BAD", set(bad))
    ended: Any = CliRunner().invoke(cli.demo)
    assert ended.exit_code == code, ended.output
    (programme,) = played
    assert [recovery.name for recovery in programme.recoveries] == ["none", "reaper", "embedded"]


@pytest.mark.parametrize("recovery", ["none", "reaper", "embedded", "published"])
def test_a_drill_fails_where_anything_is_wrong_in_any_mode(
    played: list[Programme], monkeypatch: pytest.MonkeyPatch, recovery: str
) -> None:
    for bad, code in ((set(), 0), ({recovery}, 1)):
        monkeypatch.setattr("tests.drill.test_cli.BAD", bad)
        assert CliRunner().invoke(cli.drill, ["--recovery", recovery, "--files", "x"]).exit_code == code
    assert len(played) == 2


def test_options_reach_the_programme(played: list[Programme]) -> None:
    words = "--fault none --visibility-timeout 30 --no-bare-worker --idle 5 --quiet --redis-pid 7 --keep-keys"
    assert CliRunner().invoke(cli.drill, [*words.split(), "--redis-url", SERVER.url, "--limit", "3"]).exit_code == 0
    (programme,) = played
    settings = programme.settings
    assert (settings.faults, settings.bare_worker, settings.idle.total_seconds()) == ((), False, 5.0)
    assert (settings.scan_interval.total_seconds(), settings.look_interval.total_seconds()) == (1.0, 1.0)
    assert (programme.redis_url, programme.redis_pid, programme.keep_keys) == (SERVER.url, 7, True)
    assert len(programme.jobs) == 3
