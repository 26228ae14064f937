"""Drills with faults of Redis, of its clock, and of third parties; and one chaos: all real."""

from pathlib import Path

import pytest

from tests.drill.playing import EITHER, lasted, timeouts, with_faults
from tests.soak.playing import played
from tests.support.patience import scaled
from tests.support.processes import Processes
from tests.support.tiers import in_matrix

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

in_either_mode = pytest.mark.parametrize("recovery", [in_matrix(mode) for mode in EITHER])


@pytest.mark.usefixtures("clock")
@in_either_mode
async def test_a_clock_that_is_set_back_loses_and_doubles_nothing(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    faults = with_faults("kill-worker@0.3", "clock-step@0.6")
    told = await played(processes, tmp_path, *timeouts(), "--recovery", recovery, "--limit", "80", *faults)
    assert (told["settled"], told["lost"], told["early_recoveries"]) == (80, 0, 0)
    assert {(fault["kind"], fault["target"]) for fault in told["faults"]} > {("clock-step", "back")}
    assert told["second_starts"], "what the killed worker held was recovered, though the clock stood an hour back"


@in_either_mode
async def test_a_visibility_timeout_that_is_shortened_under_way_takes_nothing_from_anybody(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    faults = with_faults(f"long-jobs:30@0.2+{scaled(7):g}", "shorten-visibility@2")
    options = ("--recovery", recovery, "--visibility-timeout", f"{scaled(8):g}", "--limit", "20", *faults)
    told = await played(processes, tmp_path, *options)
    assert told["dead_lettered"] == 0
    assert [fault["kind"] for fault in told["faults"]] == ["long-jobs", "shorten-visibility"]


@in_either_mode
async def test_a_group_that_is_destroyed_under_way_loses_nothing_that_anybody_runs_or_watches(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    faults = with_faults(f"long-jobs:30@0.2+{scaled(3):g}", "destroy-group@2")
    options = ("--recovery", recovery, "--visibility-timeout", f"{scaled(4):g}", "--limit", "100", *faults)
    told = await played(processes, tmp_path, *options)
    assert (told["lost"], told["dead_lettered"]) == (0, 0)
    assert [fault["kind"] for fault in told["faults"]] == ["long-jobs", "destroy-group"]


@in_either_mode
async def test_what_went_with_consumers_that_somebody_deleted_is_done_or_told(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    long, live, killed = f"long-jobs:30@0.2+{scaled(3):g}", "delete-consumer@0.5", "delete-consumer:killed@2.5"
    options = ("--recovery", recovery, "--visibility-timeout", f"{scaled(4):g}", "--limit", "100", "--no-bare-worker")
    told = await played(processes, tmp_path, *options, *with_faults(long, live, killed))
    assert (told["dead_lettered"], told["stuck"]) == (0, 0)
    assert {fault["kind"] for fault in told["faults"]} == {"long-jobs", "delete-consumer"}
    *_, last = sorted(told["faults"], key=lambda fault: fault["until"] or 0)
    assert last["in_flight"] > 0
    assert told["lost"] == told["forgotten"] == last["in_flight"]


@in_either_mode
async def test_a_redis_that_is_killed_full_or_cuts_everybody_off_costs_no_job(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    faults = with_faults("kill-worker@0.5", "cut-connections@1", "restart-redis@1.5+0.5", "fill-redis@3+1")
    options = (*timeouts(), "--recovery", recovery, "--limit", "150", "--no-bare-worker", *faults)
    told = await played(processes, tmp_path, *options)
    assert (told["settled"], told["dead_lettered"]) == (150, 0)
    found = {fault["kind"]: fault for fault in told["faults"]}
    assert set(found) == {"kill-worker", "cut-connections", "restart-redis", "fill-redis"}
    assert lasted(found["restart-redis"]) >= 0.5
    assert lasted(found["fill-redis"]) >= 1
    assert told["redis_requests"] is None, "its counters began anew"


@pytest.mark.usefixtures("clock")
@in_either_mode
async def test_a_chaos_balances_and_what_was_drawn_was_played(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    visibility_s = min(4, scaled(2))  # of the timeouts it is drawn how long Redis is away, and how often
    options = ("--recovery", recovery, "--visibility-timeout", f"{visibility_s:g}", "--chaos", "9", "--seed", "1")
    told = await played(processes, tmp_path, *options)
    assert (told["lost"], told["stuck"], told["dead_lettered"]) == (0, 0, told["poison"])
    drawn = [fault.split("@")[0].split(":")[0] for fault in told["settings"]["faults"]]
    found = [fault["kind"] for fault in told["faults"]] + [fault["kind"] for fault in told["missed_faults"]]
    assert sorted(drawn) == sorted(found)
    assert len(told["missed_faults"]) <= len(drawn) / 2
    assert len(drawn) > 1  # how many follows from the timeouts, and so from the machine
    assert told["replay"]


@in_either_mode
async def test_no_job_is_lost_when_redis_pauses_clients_fails_over_or_shuts_down(
    processes: Processes, tmp_path: Path, binary: Path, recovery: str
) -> None:
    faults = (
        *with_faults("long-jobs:60@0.4+1", "pause-clients:writes@0.5+1", "long-jobs:60@2.4+1", "fail-over@2.5+0.8"),
        *with_faults("long-jobs:60@7.9+1", "pause-clients:all@8+1", "long-jobs:60@9.9+1", "shut-down@10+0.8"),
    )
    options = ("--recovery", recovery, "--server", str(binary), "--limit", "900", "--no-bare-worker")
    told = await played(processes, tmp_path, *timeouts(), *options, *faults)
    assert (told["settled"], told["lost"], told["missed_faults"]) == (1140, 0, [])
    found = [fault["kind"] for fault in told["faults"] if fault["kind"] != "long-jobs"]
    assert sorted(found) == ["fail-over", "pause-clients", "pause-clients", "shut-down"]
