"""The base of the image, its user, and its health check."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import anyio
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from redis.asyncio import Redis

from tests.deploy.assets import DEPLOY, image_environment, instructions
from tests.faults.scene import create_group
from tests.support.processes import ROOT, Processes
from tests.support.servers import RedisServer, free_port

EXTRAS = {"telemetry", "web"}
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.0"}
"""The image's: earlier ones need more."""
INSTALLED = "/opt/stream-reaper"
LARGEST_BYTES = 70_000_000
"""An image is to have less than 200 MB, and its base has about 125 MB."""
LAST_STAGE = max(index for index, (name, _) in enumerate(instructions()) if name == "FROM")
BUILD, FINAL = instructions()[:LAST_STAGE], instructions()[LAST_STAGE:]
ARGUMENTS = dict(rest.split("=", 1) for name, rest in instructions() if name == "ARG")


def _one(name: str) -> str:
    (rest,) = [rest for instruction, rest in FINAL if instruction == name]
    return rest


def test_nobody_in_it_is_root() -> None:
    assert _one("USER") == "10001:10001"


def test_nothing_that_runs_in_it_goes_through_a_shell() -> None:
    assert json.loads(_one("CMD")) == ["reaper", "run"]
    assert isinstance(json.loads(_one("HEALTHCHECK").partition(" CMD ")[2]), list)
    assert [rest for name, rest in FINAL if name == "ENTRYPOINT"] == []


def test_it_is_built_from_what_the_context_holds() -> None:
    let_in = [line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    copied = [
        word.rstrip("/")
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    ]
    assert sorted(copied) == sorted(let_in)
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_what_runs_is_the_wheel_and_the_last_stage_gets_nothing_else() -> None:
    *_, install = [rest for name, rest in BUILD if name == "RUN"]
    assert install.endswith('--constraint constraints.txt "$(echo /wheels/*.whl)[${EXTRAS}]"')
    assert [rest for name, rest in FINAL if name in ("COPY", "ADD")] == [f"--from=build {INSTALLED} {INSTALLED}"]


@pytest.mark.anyio
@pytest.mark.matrix  # it asks the index
async def test_the_build_stage_installs_less_than_an_image_of_200_mb_allows(tmp_path: Path) -> None:
    source, installed = tmp_path / "src", tmp_path / "installed"
    source.mkdir()
    for *names, target in (rest.split() for name, rest in BUILD if name == "COPY"):
        for name in names:
            if name.endswith("/"):
                shutil.copytree(ROOT / name, source / target)
            else:
                shutil.copy(ROOT / name, source)
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "EXTRAS": ARGUMENTS["EXTRAS"]}
    for line in (rest for name, rest in BUILD if name == "RUN"):
        here = line.replace("/wheels", f"{tmp_path}/wheels").replace(INSTALLED, str(installed))
        await anyio.run_process(["/bin/sh", "-c", here], cwd=source, env=os.environ | own)
    shutil.rmtree(source)
    assert (await anyio.run_process([installed / "bin/reaper", "--version"])).stdout.startswith(b"reaper, version ")
    assert not list(installed.rglob("pip")), "nothing is installed in a running container"
    assert sum(file.lstat().st_size for file in installed.rglob("*")) < LARGEST_BYTES


def _needed(name: str, extras: set[str]) -> Iterator[str]:
    """Return the names of everything that a distribution needs, as far as it is installed here."""
    for text in requires(name) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**PYTHON, "extra": extra}) for extra in extras or {""}):
            yield canonicalize_name(requirement.name)
            try:
                yield from _needed(requirement.name, set(requirement.extras))
            except PackageNotFoundError:
                continue


def test_every_version_in_it_is_named() -> None:
    lines = (DEPLOY / "container/constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    assert pinned == set(_needed("stream-reaper", EXTRAS | {""}))


@pytest.mark.anyio
async def test_its_health_check_tells_a_process_that_lives_from_none(
    server: RedisServer, client: Redis, processes: Processes, tmp_path: Path
) -> None:
    await create_group(client)
    port = free_port()
    words = json.loads(_one("HEALTHCHECK").partition(" CMD ")[2])
    assert words[0] == "python"
    own = image_environment()
    check = [sys.executable, words[1], words[2].replace(own["REAPER_HEALTH_PORT"], str(port))]
    assert (await anyio.run_process(check, check=False)).returncode != 0
    url = tmp_path / "redis-url"
    url.write_text(server.url)
    variables = {"REAPER_HEALTH_PORT": str(port), "REAPER_REDIS_URL_FILE": str(url), "REAPER_GROUPS": "orders/billing"}
    replica = processes.reaper(env=own | variables)
    await replica.prints("lease taken")
    assert (await anyio.run_process(check, check=False)).returncode == 0
