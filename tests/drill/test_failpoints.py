"""Failpoints: nothing by default; armed, the first process that comes by does what the file says."""

import signal
from pathlib import Path

import pytest

from reaper import failpoints
from reaper.failpoints import arm, claimed_by, disarm, failpoint, is_armed
from tests.support.processes import Processes, Running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

PASSER = """
from reaper.failpoints import failpoint
try:
    failpoint("here")
except ConnectionError as error:
    print("raised", error)
print("passed")
"""


def _passer(processes: Processes, folder: Path) -> Running:
    return processes.python("-c", PASSER, env={"REAPER_FAILPOINTS": str(folder)})


def test_without_the_variable_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arm(tmp_path, "here", "raise")
    monkeypatch.chdir(tmp_path)
    failpoint("here")
    assert is_armed(tmp_path, "here")


async def test_what_is_not_armed_or_disarmed_again_is_passed(tmp_path: Path, processes: Processes) -> None:
    arm(tmp_path, "elsewhere", "kill")
    arm(tmp_path, "here", "kill")
    disarm(tmp_path, "here")
    passer = _passer(processes, tmp_path)
    assert (await passer.wait(), passer.output) == (0, "passed\n")
    assert claimed_by(tmp_path, "here") is None


async def test_a_killing_failpoint_kills_the_process_that_claims_it(tmp_path: Path, processes: Processes) -> None:
    arm(tmp_path, "here", "kill")
    passer = _passer(processes, tmp_path)
    assert await passer.wait() == -signal.SIGKILL
    assert (claimed_by(tmp_path, "here"), is_armed(tmp_path, "here")) == (passer.pid, False)


async def test_a_raising_failpoint_looks_like_a_lost_connection(tmp_path: Path, processes: Processes) -> None:
    arm(tmp_path, "here", "raise")
    passer = _passer(processes, tmp_path)
    assert (await passer.wait(), passer.output) == (0, "raised failpoint here\npassed\n")


async def test_a_stopping_failpoint_holds_the_process_until_it_is_told_to_go_on(
    tmp_path: Path, processes: Processes
) -> None:
    arm(tmp_path, "here", "stop")
    passer = _passer(processes, tmp_path)
    await wait_until(lambda: claimed_by(tmp_path, "here") == passer.pid, "the failpoint is claimed")
    await wait_until(lambda: _state_of(passer) == "T", "the process is stopped")
    assert passer.output == ""
    passer.resume()
    assert (await passer.wait(), passer.output) == (0, "passed\n")


def _state_of(running: Running) -> str:
    return Path(f"/proc/{running.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


async def test_one_of_many_processes_claims_it(tmp_path: Path, processes: Processes) -> None:
    arm(tmp_path, "here", "raise")
    passers = [_passer(processes, tmp_path) for _ in range(4)]
    for passer in passers:
        await passer.wait()
    assert sorted(passer.output.count("raised") for passer in passers) == [0, 0, 0, 1]


def test_arming_again_forgets_who_claimed_it_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_DIRECTORY", str(tmp_path))
    arm(tmp_path, "here", "raise")
    with pytest.raises(ConnectionError):
        failpoint("here")
    arm(tmp_path, "here", "raise")
    assert claimed_by(tmp_path, "here") is None


def test_an_action_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_DIRECTORY", str(tmp_path))
    arm(tmp_path, "here", "explode")
    with pytest.raises(ValueError, match=r"'explode'\. Write stop, kill or raise"):
        failpoint("here")
