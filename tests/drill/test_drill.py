"""Whole drills: processes, a Redis and faults, all real."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.conftest import StartServer
from tests.drill.playing import EITHER, lasted, read, timeouts, with_faults
from tests.support.patience import scaled
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.tiers import WITH_CLAIM, in_matrix
from tests.support.waiting import wait_until
from workers.protocol.connection import commands_client
from workers.protocol.events import decode_entry
from workers.protocol.messages import text

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

FEW = ("--workers", "1", "--no-bare-worker", "--reapers", "1")
"""What is not about who takes over needs no others: starting a process costs as much as a drill does."""

FAULTS = ("kill-worker@0.5", "poison@1", "kill-holder@2", "pause-holder@4")


def _drill(processes: Processes, *options: str, folder: Path | None = None) -> Running:
    """Start a drill whose timeouts are as short as usual, and as long as this machine is slow."""
    env = {"TMPDIR": str(folder)} if folder else None
    return processes.python("-m", "reaper", "drill", *timeouts(), *options, env=env, name="drill")


async def _played(processes: Processes, folder: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """Play a drill to its end, and return its report."""
    report = folder / "report.json"
    drill = _drill(processes, *options, "--output", str(report))
    assert await drill.wait() == code, drill.output
    assert "\x1b" not in drill.output, "no terminal, no colour"
    told: dict[str, Any] = read(report)
    return told


def _ran_thrice_or_in_company(told: dict[str, Any], poison: int) -> None:
    """Poison is given up at its third crash, unless another quarantined job crashed with it."""
    assert len([start for start in told["second_starts"] if start["n"] == poison]) >= 2, told["second_starts"]


async def test_every_job_is_accounted_for_after_every_fault(processes: Processes, tmp_path: Path) -> None:
    told = await _played(processes, tmp_path, "--limit", "350", *with_faults(*FAULTS))
    assert (told["balanced"], told["objections"]) == (True, [])
    assert (told["enqueued"], told["settled"], told["dead_lettered"], told["lost"]) == (351, 350, 1, 0)
    assert told["early_recoveries"] == 0
    assert told["writes_fenced"] >= 1
    assert sorted({fault["kind"] for fault in told["faults"]}) == [
        "kill-holder",
        "kill-worker",
        "pause-holder",
        "poison",
    ]
    assert {"worker_killed", "poison"} <= {start["cause"] for start in told["second_starts"]}
    _ran_thrice_or_in_company(told, 351)
    assert told["recovered"] >= len(told["second_starts"])


@pytest.mark.matrix
async def test_without_recovery_the_jobs_of_a_killed_worker_are_stuck(processes: Processes, tmp_path: Path) -> None:
    options = ("--recovery", "none", "--limit", "100", *with_faults("kill-worker@0.5"))
    told = await _played(processes, tmp_path, *options, code=1)
    (kill,) = told["faults"]
    # Counted a moment before the kill: the worker may have read or settled one more by then.
    assert kill["in_flight"] > 0
    assert 0 < told["stuck"] <= told["settings"]["concurrency"]
    assert told["settled"] == told["enqueued"] - told["stuck"]
    assert (told["balanced"], told["lost"], told["second_starts"]) == (False, 0, [])


@pytest.mark.matrix
async def test_embedded_workers_account_for_every_job_without_any_reaper(processes: Processes, tmp_path: Path) -> None:
    faults = with_faults("kill-worker:w1@0.5", "kill-holder@0.5", "poison@1.5")
    told = await _played(processes, tmp_path, "--recovery", "embedded", "--limit", "200", *faults)
    assert (told["recovery"], told["balanced"], told["objections"]) == ("embedded", True, [])
    assert (told["enqueued"], told["settled"], told["dead_lettered"], told["lost"]) == (201, 200, 1, 0)
    assert (told["early_recoveries"], told["settings"]["reapers"]) == (0, 0)
    assert [(one["asked"], one["played"]) for one in told["left_out"]] == [("kill-holder@0.5", None)]
    assert [(fault["kind"], fault["target"]) for fault in told["faults"]] == [
        ("kill-worker", "w1-1"),
        ("poison", "job 201"),
    ]
    assert told["recovered"] >= len(told["second_starts"]) >= 2
    _ran_thrice_or_in_company(told, 201)
    assert told["processes"] == {"worker": 3, "bare worker": 1}
    assert told["cpu_s"]["worker"] > 0


@pytest.mark.matrix
@pytest.mark.parametrize("recovery", EITHER)
async def test_a_worker_that_is_stopped_loses_what_it_held_and_settles_none_of_it_when_it_goes_on(
    processes: Processes, tmp_path: Path, recovery: str
) -> None:
    pause = f"pause-worker@0.5+{2 * scaled(2):g}"
    told = await _played(processes, tmp_path, "--recovery", recovery, "--limit", "100", *with_faults(pause))
    assert (told["balanced"], told["settled"], told["dead_lettered"]) == (True, 100, 0)
    (fault,) = told["faults"]
    assert (fault["kind"], lasted(fault) >= 2 * scaled(2)) == ("pause-worker", True)
    assert fault["in_flight"] > 0
    assert {start["previous_worker"] for start in told["second_starts"]} == {fault["target"]}


@pytest.mark.matrix
async def test_reapers_may_be_gone_for_a_while_and_the_journals_can_be_kept(
    processes: Processes, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server()
    told = await _played(
        processes, tmp_path, "--limit", "200", "--workers", "2", "--no-bare-worker", "--reapers", "2", "--quiet",
        *with_faults("kill-worker:half@0.5", "kill-reapers@1+1.5"), "--long-jobs", "5@0.2+2.2",
        "--redis-url", server.url, "--keep-keys",
    )  # fmt: skip
    assert (told["balanced"], told["enqueued"], told["settled"], told["stuck"]) == (True, 205, 205, 0)
    faults = {fault["kind"]: fault for fault in told["faults"]}
    assert faults["kill-worker"]["target"] == "w1-1"
    assert faults["long-jobs"]["in_flight"] == 5
    assert lasted(faults["kill-reapers"]) >= 1.5
    assert (told["processes"], told["processes_started"]) == ({"worker": 2, "reaper": 2}, 7)
    assert told["redis_requests"] > 0
    hit = {start["n"] for start in told["second_starts"]}
    assert 205 - told["recovered"] <= told["healthy"]["jobs"] <= 205 - len(hit), "started or not when their worker died"
    async with _client(server.url) as client:
        kept = [text(key) for key in await client.keys("*")]
        acked = [event for event in await _events(client, told["keys"]["journal"]) if event == "acked"]
        injected = await _events(client, told["keys"]["namespace_journal"])
    assert {told["keys"]["journal"], told["keys"]["namespace_journal"], told["keys"]["stream"]} <= set(kept)
    assert len(acked) == 205
    assert injected.count("fault_injected") == 3


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Redis]:
    client = commands_client(url)
    try:
        yield client
    finally:
        await client.aclose()


async def _events(client: Redis, journal: str) -> list[str]:
    entries = await client.execute_command("XRANGE", journal, "-", "+")
    return [event.event for entry_id, flat in entries for event in decode_entry(entry_id, flat)]


async def test_redis_may_stand_still_and_every_job_is_accounted_for(processes: Processes, tmp_path: Path) -> None:
    options = ("--recovery", "embedded", "--limit", "100", "--workers", "2", *with_faults("pause-redis@0.5+1"))
    told = await _played(processes, tmp_path, *options)
    assert (told["balanced"], told["settled"], told["objections"]) == (True, 100, [])
    (pause,) = told["faults"]
    assert (pause["kind"], lasted(pause) >= 1) == ("pause-redis", True)


async def test_a_redis_of_somebody_else_is_left_as_it_was(
    processes: Processes, server: RedisServer, client: Redis
) -> None:
    await client.set("mine", "1")
    drill = _drill(processes, *FEW, "--redis-url", server.url, "--limit", "40", *with_faults("none"))
    assert await drill.wait() == 0, drill.output
    assert await client.keys("*") == [b"mine"]


IN_PLACE = [("--recovery", "reaper"), ("--recovery", "embedded")]


@pytest.mark.contract
@pytest.mark.only_on(*WITH_CLAIM)
@pytest.mark.parametrize("words", IN_PLACE, ids=" ".join)
async def test_given_back_in_place_every_job_is_accounted_for_after_every_fault(
    processes: Processes, server: RedisServer, words: tuple[str, str]
) -> None:
    drill = _drill(processes, *words, "--policy", "in-place", "--redis-url", server.url)
    assert await drill.wait() == 0, drill.output


async def test_a_redis_that_cannot_give_back_in_place_is_rejected(processes: Processes, server: RedisServer) -> None:
    drill = _drill(processes, "--policy", "in-place", "--redis-url", server.url)
    assert await drill.wait() == 2
    assert "error: --policy in-place needs XREADGROUP … CLAIM (Redis 8.4), which " in drill.output


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _left_in(folder: Path) -> bool:
    return any(folder.glob("reaper-drill-*"))


@pytest.mark.parametrize(("ending", "code"), [in_matrix("interrupt", 130), ("terminate", 130), ("kill", -9)])
async def test_a_drill_that_is_ended_leaves_no_process_behind(
    processes: Processes, tmp_path: Path, ending: str, code: int
) -> None:
    drill = _drill(processes, *FEW, "--limit", "350", *with_faults("none"), folder=tmp_path)
    await drill.prints(r"1\.\d s .* holder r\d")
    children = _children(drill.pid)
    assert len(children) == 3, "Redis, a worker, a reaper"
    getattr(drill, ending)()
    assert await drill.wait() == code
    await wait_until(lambda: not _alive(children), "every process has ended")
    assert _left_in(tmp_path) is (ending == "kill"), "nobody can clean up after kill -9"
