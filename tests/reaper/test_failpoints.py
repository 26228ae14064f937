"""Failpoints: off by default, claimed by one process, and doing what they say."""

import os
import signal
from pathlib import Path

import pytest

from reaper import failpoints
from reaper.failpoints import ENVIRONMENT_VARIABLE, arm, claimed_by, disarm, failpoint, is_armed
from tests.support.processes import Processes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

NAME = "recover.before_write"
_PASS = f"from reaper.failpoints import failpoint; failpoint({NAME!r}); print('passed')"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that this process looks into."""
    monkeypatch.setattr(failpoints, "_DIRECTORY", str(tmp_path))
    return tmp_path


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_none_is_active_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(failpoints, "_DIRECTORY", None)
    arm(tmp_path, NAME, "raise")
    failpoint(NAME)
    assert is_armed(tmp_path, NAME)


def test_one_that_is_not_armed_does_nothing(folder: Path) -> None:
    arm(folder, "scan.before_page", "raise")
    failpoint(NAME)
    assert files(folder) == {"scan.before_page"}


def test_an_armed_one_raises_once_and_tells_by_whom_it_was_passed(folder: Path) -> None:
    arm(folder, NAME, "raise")
    with pytest.raises(ConnectionError, match=f"failpoint {NAME}"):
        failpoint(NAME)
    failpoint(NAME)
    assert (is_armed(folder, NAME), claimed_by(folder, NAME)) == (False, os.getpid())


def test_arming_again_forgets_who_passed_before(folder: Path) -> None:
    arm(folder, NAME, "raise")
    with pytest.raises(ConnectionError):
        failpoint(NAME)
    arm(folder, NAME, "raise")
    assert (is_armed(folder, NAME), claimed_by(folder, NAME), files(folder)) == (True, None, {NAME})


def test_what_nobody_has_claimed_can_be_taken_back(folder: Path) -> None:
    arm(folder, NAME, "kill")
    disarm(folder, NAME)
    disarm(folder, NAME)
    failpoint(NAME)
    assert files(folder) == set()


def test_an_action_that_is_none_is_refused(folder: Path) -> None:
    arm(folder, NAME, "sleep")
    with pytest.raises(ValueError, match=r"cannot be armed with 'sleep'\. Write stop, kill or raise"):
        failpoint(NAME)


async def test_kill_ends_the_process_at_once(processes: Processes, tmp_path: Path) -> None:
    arm(tmp_path, NAME, "kill")
    process = processes.python("-c", _PASS, env={ENVIRONMENT_VARIABLE: str(tmp_path)})
    assert (await process.wait(), process.output) == (-signal.SIGKILL, "")
    assert claimed_by(tmp_path, NAME) == process.pid


async def test_stop_freezes_the_process_until_it_is_resumed(processes: Processes, tmp_path: Path) -> None:
    arm(tmp_path, NAME, "stop")
    process = processes.python("-c", _PASS, env={ENVIRONMENT_VARIABLE: str(tmp_path)})
    await wait_until(
        lambda: os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT), "the kernel says it is frozen"
    )
    assert claimed_by(tmp_path, NAME) == process.pid
    process.resume()
    assert (await process.wait(), process.output) == (0, "passed\n")


async def test_of_two_processes_one_claims_it(processes: Processes, tmp_path: Path) -> None:
    arm(tmp_path, NAME, "kill")
    both = [processes.python("-c", _PASS, env={ENVIRONMENT_VARIABLE: str(tmp_path)}) for _ in range(2)]
    assert sorted([await process.wait() for process in both]) == [-signal.SIGKILL, 0]
