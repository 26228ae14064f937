"""Engines and machines for the tests, and the record of their runs."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.deploy.real import engine as engines
from tests.deploy.real.engine import Engine, started_engine
from tests.deploy.real.machine import Machine, require_machines
from tests.deploy.real.record import RAN_ON, Record
from tests.deploy.real.stack import Stack
from tests.deploy.real.trees import HOST, NotHereError
from tests.deploy.real.units import SYSTEMD, Units, install
from tests.support.processes import ROOT
from tests.support.tiers import RECORD

SHIPPED = ("deploy", "reaper", "workers", "pyproject.toml", "README.md", "LICENSE", ".dockerignore")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the record."""
    if config.getoption(RECORD):
        config.pluginmanager.register(Record())


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for machines and for a copy of the project. It is removed."""
    made = tmp_path_factory.mktemp("deploy", numbered=True)
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="session")
def project(folder: Path) -> Path:
    """A copy of the project, as it is shipped: secrets are made in it, and programs swapped."""
    copy = folder / "project"
    copy.mkdir()
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "secrets"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
async def engine(project: Path, folder: Path) -> AsyncIterator[Engine]:
    """An engine with the image, built by the shipped instructions."""
    try:
        async with started_engine(project, folder / "engine") as engine:
            yield engine
    except NotHereError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def stack(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The services of the shipped compose file, up and healthy. They leave no trace."""
    stack = Stack(engine)
    request.config.stash.setdefault(RAN_ON, []).append(engines.versions(engine))
    try:
        stack.begin()
        yield stack
    finally:
        stack.end()


@pytest.fixture(scope="module")
async def units(project: Path, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Units]:
    """A machine with the units, booted. It leaves no trace."""
    try:
        require_machines()
        machine = Machine(HOST, folder / "units")
    except NotHereError as error:
        pytest.skip(str(error))
    try:
        await install(machine, project)
        with machine.on(*SYSTEMD, shared=(project,), network=False, cgroup=True) as running:
            units = Units(running, project)
            await units.set_up()
            request.config.stash.setdefault(RAN_ON, []).append(units.versions())
            yield units
    finally:
        machine.remove()
