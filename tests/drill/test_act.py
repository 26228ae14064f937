"""What an act of chaos is judged by, and how long it is waited for."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from reaper.drill.act import objections_to, patience_s
from reaper.drill.faults import Fault, parse_fault
from reaper.drill.ledger import Fate, Ledger
from reaper.drill.records import InjectedFault, MissedFault
from reaper.drill.recoveries import find_recovery
from reaper.drill.redis_server import Server
from reaper.drill.settings import DrillSettings
from reaper.drill.stage import Stage, set_stage
from reaper.drill.trace import PlannedJob
from workers.protocol.connection import commands_client

SERVER = Server("redis://127.0.0.1:1/0", "7", "no server", ours=False)
JOBS = [PlannedJob(1, timedelta(0), timedelta(seconds=1))]
FAULTS = tuple(map(parse_fault, ("pause-leader@1", "kill-leader@2", "kill-worker@3", "pause-redis@4+2")))
GOOD = Ledger(enqueued=1, fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 1})
NOTHING_HIT = "no worker had jobs in flight"


def _stage(folder: Path, *, chaos: bool, faults: tuple[Fault, ...] = FAULTS) -> Stage:
    settings = DrillSettings(faults=faults, chaos=timedelta(seconds=10) if chaos else None)
    return set_stage(commands_client(SERVER.url), SERVER, settings, find_recovery("reaper"), folder, "0a")


def _missed(*kinds: str) -> Ledger:
    return replace(GOOD, missed=tuple(MissedFault(kind, NOTHING_HIT) for kind in kinds))


@pytest.mark.parametrize(
    ("missed", "sentences"),
    [
        ((), []),
        (("pause-leader", "kill-worker"), []),
        (
            ("pause-leader", "kill-worker", "kill-leader"),
            ["of 4 faults that were drawn, 3 found nothing to hit"],
        ),
    ],
)
def test_in_a_chaos_some_faults_may_find_nothing_to_hit(
    tmp_path: Path, missed: tuple[str, ...], sentences: list[str]
) -> None:
    assert objections_to(_missed(*missed), _stage(tmp_path, chaos=True)) == sentences


def test_a_single_fault_must_find_what_it_is_to_hit(tmp_path: Path) -> None:
    (first, second) = objections_to(_missed("kill-worker"), _stage(tmp_path, chaos=False))
    assert first.startswith("a leader was to be paused")
    assert second == f"kill-worker was left out: {NOTHING_HIT}"


def test_a_leader_that_was_paused_in_a_chaos_must_have_had_a_write_refused(tmp_path: Path) -> None:
    paused = replace(GOOD, faults=(InjectedFault("pause-leader", "r1-1", 1.0),))
    (sentence,) = objections_to(paused, _stage(tmp_path, chaos=True))
    assert sentence.startswith("a leader was to be paused")
    assert objections_to(replace(paused, stale_writes_refused=1), _stage(tmp_path / "b", chaos=True)) == []


def test_an_act_of_chaos_is_waited_for_the_longer_the_more_was_drawn(tmp_path: Path) -> None:
    recovery = find_recovery("reaper")
    plain = patience_s(_stage(tmp_path / "a", chaos=False).settings, recovery, JOBS)
    chaos = patience_s(_stage(tmp_path / "b", chaos=True).settings, recovery, JOBS)
    more = patience_s(_stage(tmp_path / "c", chaos=True, faults=FAULTS * 2).settings, recovery, JOBS)
    assert plain + 10 < chaos < more
