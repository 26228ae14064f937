"""The readme's quick start is typed as it stands there, and leads to a recovered job on the status page."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.quick_start import (
    BLOCKS,
    INSTALL_LINES,
    README,
    SECTION,
    Shells,
    play_programs,
    play_quick_start,
    play_readme_worker,
    play_sample,
    play_tutorial,
)
from tests.library.examples import write_files
from tests.support.processes import ROOT, Processes
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


def test_the_quick_start_installs_what_it_uses() -> None:
    install = BLOCKS[0].splitlines()[:INSTALL_LINES]
    assert install == ["python3 -m venv .venv && . .venv/bin/activate", "pip install '.[web]'"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "web" in project["optional-dependencies"]
    assert project["scripts"]["reaper"] == "reaper.__main__:main"
    (port,) = re.findall(r"--health-port (\d+)", BLOCKS[0])
    assert f"<http://127.0.0.1:{port}/>" in SECTION
    addresses = re.findall(r"export (\w+)=(redis://\S+)", SECTION)
    assert addresses == [("REDIS_URL", "redis://127.0.0.1:6379/0")] * 2


def test_no_command_of_the_readme_is_left_out() -> None:
    """The quick start's blocks are typed below, and one that starts the worker."""
    assert len(re.findall(r"^```sh$", README, re.MULTILINE)) == len(BLOCKS) + 1


async def test_the_quick_start_leads_to_a_recovered_job_on_the_status_page(
    processes: Processes, server: RedisServer, tmp_path: Path
) -> None:
    shells = Shells(processes, server, tmp_path, sys.executable)
    await play_quick_start(shells)
    await play_tutorial(shells)
    await play_readme_worker(shells, tmp_path)


async def test_the_sample_of_the_tutorial_is_what_explain_prints(
    processes: Processes, server: RedisServer, tmp_path: Path
) -> None:
    await play_sample(Shells(processes, server, tmp_path, sys.executable))


async def test_the_tutorial_with_a_worker_and_a_producer_survives_a_kill(
    processes: Processes, server: RedisServer, tmp_path: Path
) -> None:
    assert write_files("tutorial-worker.md", tmp_path) == ["shop.py", "enqueue.py"]
    await play_programs(Shells(processes, server, tmp_path, sys.executable))
