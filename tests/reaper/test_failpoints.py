"""Failpoints: off by default, claimed by one process, and doing what they say."""

import signal
from pathlib import Path

import pytest

from reaper import failpoints
from reaper.failpoints import ENVIRONMENT_VARIABLE, arm, failpoint, is_armed
from tests.support.processes import Processes

pytestmark = pytest.mark.anyio

NAME = "recover.before_write"
_PASS = f"from reaper.failpoints import failpoint; failpoint({NAME!r}); print('passed')"


def test_none_is_active_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(failpoints, "_DIRECTORY", None)
    arm(tmp_path, NAME, "raise")
    failpoint(NAME)
    assert is_armed(tmp_path, NAME)


async def test_of_two_processes_one_claims_it(processes: Processes, tmp_path: Path) -> None:
    arm(tmp_path, NAME, "kill")
    both = [processes.python("-c", _PASS, env={ENVIRONMENT_VARIABLE: str(tmp_path)}) for _ in range(2)]
    assert sorted([await process.wait() for process in both]) == [-signal.SIGKILL, 0]
