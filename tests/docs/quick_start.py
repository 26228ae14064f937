"""Types the commands of the readme and of the tutorials, as they stand there, into shells."""

import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.http import request
from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import wait_until

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Quick start\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```sh\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
INSTALL_LINES = 2
TUTORIAL = (ROOT / "docs/tutorial-recover.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^```sh\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
(SHOWN,) = re.findall(r"^```text\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
PROGRAMS = (ROOT / "docs/tutorial-worker.md").read_text(encoding="utf-8")
PROGRAM_STEPS = re.findall(r"^```sh\n(.*?)^```", PROGRAMS, re.MULTILINE | re.DOTALL)
ENTRY_ID = re.compile(r"\d{13}-\d+")

REDIS_CLI = """
import sys
from redis import Redis
print(Redis.from_url({url!r}, protocol=2).execute_command(*sys.argv[1:]), flush=True)
"""
"""Sends the words to the server of the test, as the command of that name does to the usual port."""


class Shells:
    """Shells in which the readme's lines are typed, with the port and the server of the test in place of its own.

    ``python`` is the one that the package is installed for.
    """

    def __init__(self, processes: Processes, server: RedisServer, folder: Path, python: str) -> None:
        self.port = free_port()
        self._processes = processes
        self._redis = server.port
        self._folder = folder
        self._env = {} if python == sys.executable else {"PYTHONPATH": ""}  # another one has the package installed
        for command in ("reaper", "worker", "python"):
            self._put(command, Path(python).with_name(command))
        activate = folder / ".venv/bin/activate"  # the commands are on the path already
        activate.parent.mkdir(parents=True)
        activate.touch()
        code = folder / "redis_cli.py"
        code.write_text(REDIS_CLI.format(url=server.url), encoding="utf-8")
        self._put("redis-cli", python, code)

    def _put(self, name: str, *words: str | Path) -> None:
        program = self._folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n', encoding="utf-8")
        program.chmod(0o755)

    def types(self, lines: str) -> Running:
        """Type lines of the readme with ``set -e``. A job is overdue after 4 s instead of 30."""
        lines = lines.replace(":6379/", f":{self._redis}/").replace(
            "--visibility-timeout 30s", "--visibility-timeout 4s"
        )
        lines = lines.replace("--health-port 9180", f"--health-port {self.port}")
        folder = shlex.quote(str(self._folder))
        script = f'set -e\ncd {folder}\nPATH={folder}:"$PATH"\n{lines}'
        return self._processes.start("/bin/bash", "-c", script, env=self._env)

    async def page(self) -> dict[str, Any]:
        """Return the data of the status page, or '{}' while it is not served."""
        try:
            reply = await request(self.port, "/status")
        except OSError:
            return {}
        return dict(reply.data) if reply.code == 200 else {}


async def play_quick_start(shells: Shells) -> None:
    """Type everything but the installation, until the status page counts the recovered job."""
    start, crash, next_worker, look = BLOCKS
    export, create, run = start.splitlines()[INSTALL_LINES:]
    assert await shells.types(f"{export}\n{create}").wait() == 0
    shells.types(f"{export}\n{run}")

    async def served() -> bool:
        return bool(await shells.page())

    await wait_until(served, "the page is served")
    crashed = shells.types(crash)
    assert await crashed.wait() == 0
    entry_id = ENTRY_ID.findall(crashed.output)[0]

    async def recovered() -> bool:
        return [group["recovered"] for group in (await shells.page()).get("groups", [])] == [1]

    await wait_until(recovered, "the page counts the recovery")
    read, ack = next_worker.splitlines()
    got = await _typed(shells, read)
    assert entry_id in got
    ready = ENTRY_ID.findall(got)[0]  # the copy has an ID of its own
    assert (await _typed(shells, ack.replace("ENTRY", ready))).strip() == "1"
    shown = await _typed(shells, look.replace("JOB", entry_id))
    assert "recovered 1" in shown
    assert "consumer=crashed" in shown


async def play_tutorial(shells: Shells) -> None:
    """Type the steps of the tutorial that follows the quick start. The reaper still runs."""
    stall, explain, watch, finish, stall_often, dead = STEPS
    export = stall.splitlines()[0]
    stalled = await _typed(shells, stall)
    job = ENTRY_ID.findall(stalled)[0]
    assert f"job {job}" in await _typed(shells, f"{export}\n{explain.replace('JOB', job)}")
    status = watch.removeprefix("watch ")  # not every machine has `watch`, and it needs a terminal

    async def is_recovered() -> bool:
        return "recovered 2" in await _shown(shells, f"{export}\n{status}")

    await wait_until(is_recovered, "the job is recovered")
    read, ack, settled = finish.splitlines()
    entry = ENTRY_ID.findall(await _typed(shells, read))[0]
    assert (await _typed(shells, ack.replace("ENTRY", entry))).strip() == "1"
    assert "settled" in await _typed(shells, f"{export}\n{settled.replace('JOB', job)}")
    doomed = ENTRY_ID.findall(await _typed(shells, stall_often))[0]
    letters, redrive = dead.splitlines()

    async def is_dead() -> bool:
        return f"job {doomed}" in await _typed(shells, f"{export}\n{letters}")

    await wait_until(is_dead, "the job is a dead letter")
    assert "1 dead letter redriven" in await _typed(shells, f"{export}\n{redrive}")


async def play_sample(shells: Shells) -> None:
    """Stall a job as the tutorial says, with its own timeout, and compare the sample of `reaper explain`."""
    export, create, run = BLOCKS[0].splitlines()[INSTALL_LINES:]
    await _typed(shells, f"{export}\n{create}")
    await shells.types(f"{export}\n{run.replace('30s', '30000ms')}").prints("lease taken")
    job = ENTRY_ID.findall(await _typed(shells, STEPS[0]))[0]
    explained = await _typed(shells, f"{STEPS[0].splitlines()[0]}\n{STEPS[1].replace('JOB', job)}")
    for line in SHOWN.splitlines():
        assert re.search(_shape(line), explained, re.MULTILINE), (line, explained)


async def play_readme_worker(shells: Shells, folder: Path) -> None:
    """Save the worker of the readme, start it as the readme says, and let it run the next job."""
    _, _, section = README.partition("\n## Workers\n")
    code, start = (
        re.search(pattern, section, re.DOTALL) for pattern in (r"```python\n(.*?)```", r"```sh\n(worker run .*?)```")
    )
    assert code
    assert start
    (folder / "shop.py").write_text(code[1], encoding="utf-8")
    export = BLOCKS[0].splitlines()[INSTALL_LINES]
    worker = shells.types(f"{export}\nexec {start[1]}")
    entry = (await _typed(shells, "redis-cli XADD orders '*' order 20")).strip().strip("b'")
    await worker.prints(rf"^{entry} .*b'20'.* 1$")
    worker.terminate()
    assert await worker.wait() == 0


async def play_programs(shells: Shells) -> None:
    """Type the steps of the tutorial with a worker and a producer. Their files exist."""
    start, enqueue, crash, dead = PROGRAM_STEPS
    export, run = start.splitlines()
    workers = [shells.types(f"{export}\nexec {run}") for _ in range(2)]
    said = await _typed(shells, enqueue)
    assert said.splitlines() == ["order-17 is new", "order-18 is new", "order-17 was enqueued before"]
    again, kill = crash.splitlines()
    await _typed(shells, f"{export}\n{again}")

    async def who_bills() -> list[str]:
        return re.findall(r"billing 19, delivery 1, process (\d+)", "".join(one.output for one in workers))

    (process,) = await wait_until(who_bills, "a worker bills order 19")
    victim = next(one for one in workers if "billing 19" in one.output)
    await _typed(shells, kill.replace("PROCESS", process))
    await next(one for one in workers if one is not victim).prints(r"^billing 19, delivery 2, process \d+$")
    assert await victim.wait() == -signal.SIGKILL
    bad, letters = dead.splitlines()
    await _typed(shells, f"{export}\n{bad}")

    async def listed() -> bool:
        return "an order is a number" in await _typed(shells, f"{export}\n{letters}")

    await wait_until(listed, "the nonsense is a dead letter")


def _shape(line: str) -> str:
    """Return the pattern of a sample line. Each number and unit of time may be another one."""
    return "^" + re.sub(r"\d+(?:\\\.\d+)?(?:\\ s\b)?", r"[\\d.]+(?: m?s)?", re.escape(line)) + "$"


async def _typed(shells: Shells, lines: str) -> str:
    shell = shells.types(lines)
    assert await shell.wait() == 0, shell.output
    return shell.output


async def _shown(shells: Shells, lines: str) -> str:
    """Return what `reaper status` shows. A slow machine may see the group degraded: no worker reads a ready job."""
    shell = shells.types(lines)
    assert await shell.wait() in {0, 1}, shell.output
    return shell.output
