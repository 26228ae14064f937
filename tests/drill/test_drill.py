"""Whole drills: processes, a Redis and faults, all real."""

import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

FAULTS = ("kill-worker@0.5", "poison@1", "kill-leader@2", "pause-leader@4")


def _drill(processes: Processes, *options: str, folder: Path | None = None) -> Running:
    env = {"TMPDIR": str(folder)} if folder else None
    return processes.python("-m", "reaper", "drill", *options, env=env, name="drill")


def _faults(*faults: str) -> list[str]:
    return [word for fault in faults for word in ("--fault", fault)]


def _read(report: Path) -> Any:
    return json.loads(report.read_text())


async def test_every_job_is_accounted_for_after_every_fault(processes: Processes, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    drill = _drill(processes, "--limit", "350", *_faults(*FAULTS), "--json", str(report))
    assert await drill.wait(90) == 0, drill.output
    told = _read(report)
    assert (told["balanced"], told["objections"]) == (True, [])
    assert (told["enqueued"], told["settled"], told["dead_lettered"], told["lost"]) == (351, 350, 1, 0)
    assert told["early_recoveries"] == 0
    assert told["stale_writes_refused"] >= 1
    assert {"killed", "paused"} <= {term["ended"] for term in told["terms"]}
    assert [term["token"] for term in told["terms"]] == sorted({term["token"] for term in told["terms"]})
    assert sorted({fault["kind"] for fault in told["faults"]}) == [
        "kill-leader",
        "kill-worker",
        "pause-leader",
        "poison",
    ]
    assert {"worker_killed", "poison"} <= {start["cause"] for start in told["second_starts"]}
    assert len([start for start in told["second_starts"] if start["n"] == 351]) == 2, "poison ran three times in all"
    assert told["recovered"] >= len(told["second_starts"])


async def test_without_recovery_the_jobs_of_a_killed_worker_are_stuck(processes: Processes, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    drill = _drill(
        processes, "--recovery", "none", "--limit", "100", *_faults("kill-worker@0.5"), "--visibility-timeout", "1.4",
        "--json", str(report),
    )  # fmt: skip
    assert await drill.wait(60) == 1, drill.output
    told = _read(report)
    (kill,) = told["faults"]
    # Counted a moment before the kill: the worker may have read or settled one more by then.
    assert kill["in_flight"] > 0
    assert 0 < told["stuck"] <= told["settings"]["concurrency"]
    assert told["settled"] == told["enqueued"] - told["stuck"]
    assert (told["balanced"], told["lost"], told["second_starts"]) == (False, 0, [])


async def test_a_redis_of_somebody_else_is_left_as_it_was(
    processes: Processes, server: RedisServer, client: Redis
) -> None:
    await client.set("mine", "1")
    drill = _drill(processes, "--redis-url", server.url, "--limit", "40", *_faults("none"))
    assert await drill.wait(60) == 0, drill.output
    assert await client.keys("*") == [b"mine"]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _left_in(folder: Path) -> bool:
    return any(folder.glob("reaper-drill-*"))


@pytest.mark.parametrize(("ending", "code"), [("interrupt", 130), ("terminate", 130), ("kill", -9)])
async def test_a_drill_that_is_ended_leaves_no_process_behind(
    processes: Processes, tmp_path: Path, ending: str, code: int
) -> None:
    drill = _drill(processes, "--limit", "350", *_faults("none"), folder=tmp_path)
    await drill.prints(r"1\.\d s .* leader r\d", timeout=40)
    children = _children(drill.pid)
    assert len(children) == 8, "Redis, four workers, three reapers"
    getattr(drill, ending)()
    assert await drill.wait(30) == code
    await wait_until(lambda: not _alive(children), "every process has ended")
    assert _left_in(tmp_path) is (ending == "kill"), "nobody can clean up after kill -9"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--fault", "kill-woker@1"), "Error: unknown fault 'kill-woker': did you mean 'kill-worker'?"),
        (("--trace", "nowhere.csv"), "Error: trace nowhere.csv cannot be read: No such file or directory."),
        (("--reapers", "1"), "Error: fault 'pause-leader@12' needs a second reaper"),
        (("--redis-url", "redis://127.0.0.1:1"), "Error: no usable Redis at redis_url 'redis://127.0.0.1:1'"),
    ],
)
async def test_what_cannot_be_played_is_refused_in_a_sentence(
    processes: Processes, options: tuple[str, ...], sentence: str
) -> None:
    drill = _drill(processes, *options)
    assert await drill.wait(30) == 1
    assert sentence in drill.output
    assert "Traceback" not in drill.output
