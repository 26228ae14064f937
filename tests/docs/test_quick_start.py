"""The readme's quick start is typed as it stands there, and leads to a recovered job on the status page."""

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.http import request
from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import wait_until
from workers.protocol.messages import text

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Use it\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```sh\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
INSTALL_LINES = 2

REDIS_CLI = """
import sys
from redis import Redis
print(Redis.from_url({url!r}, protocol=2).execute_command(*sys.argv[1:]), flush=True)
"""
"""Sends the words to the server of the test, as the command of that name does to the usual port."""


class Shells:
    """Shells in which the readme's lines are typed, with the port and the server of the test in place of its own."""

    def __init__(self, processes: Processes, server: RedisServer, folder: Path) -> None:
        self.port = free_port()
        self._processes = processes
        self._redis = server.port
        self._folder = folder
        self._put("reaper", '-m reaper "$@"')
        code = folder / "redis_cli.py"
        code.write_text(REDIS_CLI.format(url=server.url), encoding="utf-8")
        self._put("redis-cli", f'{shlex.quote(str(code))} "$@"')

    def _put(self, name: str, arguments: str) -> None:
        program = self._folder / name
        program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}\n", encoding="utf-8")
        program.chmod(0o755)

    def types(self, lines: str) -> Running:
        """Type lines of the readme; a job is overdue after 1 s instead of 30."""
        lines = lines.replace(":6379/", f":{self._redis}/").replace("--visibility-timeout 30", "--visibility-timeout 1")
        lines = lines.replace("--health-port 9180", f"--health-port {self.port}")
        folder = shlex.quote(str(self._folder))
        return self._processes.start("/bin/bash", "-c", f'cd {folder}\nPATH={folder}:"$PATH"\n{lines}')

    async def page(self) -> dict[str, Any]:
        """Return what the status page reads, '{}' while nobody serves it."""
        try:
            reply = await request(self.port, "/api/overview")
        except OSError:
            return {}
        return dict(reply.data) if reply.code == 200 else {}


@pytest.fixture
def shells(processes: Processes, server: RedisServer, tmp_path: Path) -> Shells:
    return Shells(processes, server, tmp_path)


async def read_as_plain_worker(client: Redis, name: str) -> list[tuple[str, list[bytes]]]:
    """Read one ready job and do not settle it; return it as entry ID and flat fields."""
    reply: Any = await client.execute_command(
        "XREADGROUP", "GROUP", "billing", name, "COUNT", 1, "STREAMS", "orders", ">"
    )
    return [(text(entry_id), flat) for _, entries in reply or () for entry_id, flat in entries]


def test_what_is_installed_is_there_and_the_page_is_where_the_command_serves_it() -> None:
    install = BLOCKS[0].splitlines()[:INSTALL_LINES]
    assert install == ["python3 -m venv .venv && . .venv/bin/activate", "pip install '.[web]'"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "web" in project["optional-dependencies"]
    assert project["scripts"]["reaper"] == "reaper.__main__:main"
    (port,) = re.findall(r"--health-port (\d+)", BLOCKS[0])
    assert f"<http://127.0.0.1:{port}/>" in SECTION


async def test_the_quick_start_leads_to_a_recovered_job_on_the_status_page(shells: Shells, client: Redis) -> None:
    start, take, look = BLOCKS
    export, init, run = start.splitlines()[INSTALL_LINES:]
    assert await shells.types(f"{export}\n{init}").wait() in (0, 1)  # the server of the test has no append-only file
    await client.xadd("orders", {"order": 1})
    ((stranded, _),) = await read_as_plain_worker(client, "killed")

    async def recovered() -> dict[str, str]:
        latest = (await shells.page()).get("recoveries", {}).get("latest", [])
        return {one["job"]: one["consumer"] for one in latest}

    async def given_back(job: str) -> bytes:
        """Settle what is ready, which is this job, and return its order."""
        ((entry_id, flat),) = await read_as_plain_worker(client, "healthy")
        await client.xack("orders", "billing", entry_id)
        assert flat[flat.index(b"reaper.job") + 1].decode() == job
        return flat[1]

    shells.types(f"{export}\n{run}")
    await wait_until(recovered, "what a worker had held for long is told of")
    assert await given_back(stranded) == b"1"

    printed = (await shells.types(take).prints(r"\d{13}-\d+"))[0]

    async def both() -> dict[str, str]:
        return found if len(found := await recovered()) == 2 else {}

    assert await wait_until(both, "both jobs are told of") == {stranded: "killed", printed: "doomed"}
    assert await given_back(printed) == b"17"

    status, explain, doctor = (shells.types(f"{export}\n{line}") for line in look.splitlines())
    assert await status.wait() == 0
    assert "recovered 2" in status.output
    assert await doctor.wait() in (0, 1)
    assert "ok      leader" in doctor.output
    assert await explain.wait() == 1  # the ID in the readme is nobody's
    explain = shells.types(f"{export}\n{look.splitlines()[1]}".replace("1766000000000-0", printed))
    assert await explain.wait() == 0
    assert "consumer=doomed" in explain.output
