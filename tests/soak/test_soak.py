"""Drills with faults of Redis, of its clock, and of third parties; and one chaos: all real."""

from pathlib import Path

import pytest

from tests.drill.playing import EITHER, lasted, read, timeouts, with_faults
from tests.support.patience import scaled
from tests.support.processes import Processes, Running
from tests.support.tiers import in_matrix

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


def _drill(processes: Processes, *options: str) -> Running:
    """Start a drill whose timeouts are as short as usual, and as long as this machine is slow."""
    return processes.python("-m", "tests.soak", *timeouts(), *options, name="drill")


@pytest.mark.matrix
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("recovery", EITHER)
async def test_a_clock_that_is_set_back_loses_and_doubles_nothing(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    report = tmp_path / "report.json"
    faults = with_faults("kill-worker@0.3", "clock-step@0.6")
    drill = _drill(processes, "--recovery", recovery, "--limit", "80", *faults, "--output", str(report))
    assert await drill.wait() == 0, drill.output
    told = read(report)
    assert (told["balanced"], told["settled"], told["lost"], told["early_recoveries"]) == (True, 80, 0, 0)
    assert {(fault["kind"], fault["target"]) for fault in told["faults"]} > {("clock-step", "back")}
    assert told["second_starts"], "what the killed worker held was recovered, though the clock stood an hour back"


@pytest.mark.matrix
@pytest.mark.parametrize("recovery", EITHER)
async def test_a_visibility_timeout_that_is_shortened_under_way_takes_nothing_from_anybody(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    report = tmp_path / "report.json"
    drill = processes.python(
        "-m", "tests.soak", "--recovery", recovery, "--visibility-timeout", f"{scaled(8):g}", "--limit", "20",
        *with_faults(f"long-jobs:30@0.2+{scaled(7):g}", "shorten-visibility@2"), "--output", str(report), name="drill",
    )  # fmt: skip
    assert await drill.wait() == 0, drill.output
    told = read(report)
    assert (told["balanced"], told["objections"], told["dead_lettered"]) == (True, [], 0)
    assert [fault["kind"] for fault in told["faults"]] == ["long-jobs", "shorten-visibility"]


@pytest.mark.matrix
@pytest.mark.parametrize("recovery", EITHER)
async def test_a_group_that_is_destroyed_under_way_loses_nothing_that_anybody_runs_or_watches(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    report = tmp_path / "report.json"
    drill = processes.python(
        "-m", "tests.soak", "--recovery", recovery, "--visibility-timeout", f"{scaled(4):g}", "--limit", "100",
        *with_faults(f"long-jobs:30@0.2+{scaled(3):g}", "destroy-group@2"), "--output", str(report), name="drill",
    )  # fmt: skip
    assert await drill.wait() == 0, drill.output
    told = read(report)
    assert (told["balanced"], told["objections"], told["lost"], told["dead_lettered"]) == (True, [], 0, 0)
    assert [fault["kind"] for fault in told["faults"]] == ["long-jobs", "destroy-group"]


@pytest.mark.matrix
@pytest.mark.parametrize("recovery", EITHER)
async def test_what_went_with_consumers_that_somebody_deleted_is_done_or_told(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    report = tmp_path / "report.json"
    drill = processes.python(
        "-m", "tests.soak", "--recovery", recovery, "--visibility-timeout", f"{scaled(4):g}", "--limit", "100",
        "--no-bare-worker", "--output", str(report),
        *with_faults(f"long-jobs:30@0.2+{scaled(3):g}", "delete-consumer@0.5", "delete-consumer:killed@2.5"),
        name="drill",
    )  # fmt: skip
    assert await drill.wait() == 0, drill.output
    told = read(report)
    assert (told["balanced"], told["objections"], told["dead_lettered"], told["stuck"]) == (True, [], 0, 0)
    assert {fault["kind"] for fault in told["faults"]} == {"long-jobs", "delete-consumer"}
    *_, killed = sorted(told["faults"], key=lambda fault: fault["until"] or 0)
    assert killed["in_flight"] > 0
    assert told["lost"] == told["forgotten"] == killed["in_flight"]


@pytest.mark.matrix
@pytest.mark.parametrize("recovery", EITHER)
async def test_a_redis_that_is_killed_full_or_cuts_everybody_off_costs_no_job(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    report = tmp_path / "report.json"
    faults = with_faults("kill-worker@0.5", "cut-connections@1", "restart-redis@1.5+0.5", "fill-redis@3+1")
    drill = _drill(
        processes, "--recovery", recovery, "--limit", "150", "--no-bare-worker", *faults, "--output", str(report)
    )
    assert await drill.wait() == 0, drill.output
    told = read(report)
    assert (told["balanced"], told["settled"], told["dead_lettered"], told["objections"]) == (True, 150, 0, [])
    played = {fault["kind"]: fault for fault in told["faults"]}
    assert set(played) == {"kill-worker", "cut-connections", "restart-redis", "fill-redis"}
    assert lasted(played["restart-redis"]) >= 0.5
    assert lasted(played["fill-redis"]) >= 1
    assert told["redis_requests"] is None, "its counters began anew"


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("recovery", ["reaper", in_matrix("embedded")])
async def test_a_chaos_balances_and_what_was_drawn_was_played(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    report = tmp_path / "report.json"
    drill = processes.python(  # of these timeouts it is drawn how long Redis is away, and how often
        "-m", "tests.soak", "--recovery", recovery, "--visibility-timeout", f"{min(4, scaled(2)):g}",
        "--chaos", "9", "--seed", "1", "--output", str(report), name="drill",
    )  # fmt: skip
    assert await drill.wait() == 0, drill.output
    told = read(report)
    assert (told["balanced"], told["objections"], told["lost"], told["stuck"]) == (True, [], 0, 0)
    assert told["dead_lettered"] == told["poison"]
    drawn = [fault.split("@")[0].split(":")[0] for fault in told["settings"]["faults"]]
    played = [fault["kind"] for fault in told["faults"]] + [fault["kind"] for fault in told["missed_faults"]]
    assert sorted(drawn) == sorted(played)
    assert len(told["missed_faults"]) <= len(drawn) / 2
    assert len(drawn) > 1  # how many follows from the timeouts, and so from the machine
    assert told["replay"] in drill.output


@pytest.mark.parametrize("recovery", [in_matrix("reaper"), in_matrix("embedded")])
async def test_no_job_is_lost_when_redis_pauses_clients_fails_over_or_shuts_down(
    processes: Processes, tmp_path: Path, binary: Path, recovery: str
) -> None:
    report = tmp_path / "report.json"
    faults = (
        *with_faults("long-jobs:60@0.4+1", "pause-clients:writes@0.5+1", "long-jobs:60@2.4+1", "fail-over@2.5+0.8"),
        *with_faults("long-jobs:60@7.9+1", "pause-clients:all@8+1", "long-jobs:60@9.9+1", "shut-down@10+0.8"),
    )
    drill = _drill(
        processes, "--recovery", recovery, "--server", str(binary), "--limit", "900", "--no-bare-worker", *faults,
        "--output", str(report),
    )  # fmt: skip
    assert await drill.wait() == 0, drill.output
    told = read(report)
    assert (told["settled"], told["lost"], told["missed_faults"], told["objections"]) == (1140, 0, [], [])
    played = [fault["kind"] for fault in told["faults"] if fault["kind"] != "long-jobs"]
    assert sorted(played) == ["fail-over", "pause-clients", "pause-clients", "shut-down"]
