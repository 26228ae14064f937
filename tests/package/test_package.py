"""The package that users install: its wheel, in an empty environment, without this checkout."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.docs.quick_start import Shells, play_quick_start
from tests.library.examples import write_files
from tests.support.processes import ROOT, Processes
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]


def run(*words: str | Path) -> str:
    """Run a program to its end, or fail with its output."""
    done = subprocess.run([str(word) for word in words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and of it the wheel; return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the wheel for a Python of its own, with the needs of the quick start and the testing page. Return it."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder)
    python = str(folder / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[web,testing]")
    return python


def test_an_index_takes_what_is_built(built: Path) -> None:
    answers = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built.iterdir())
    assert answers.count("PASSED") == 2


def test_the_wheel_holds_all_files_of_the_package_and_no_others(wheel: Path) -> None:
    tracked = run("git", "ls-files", "reaper", "workers").split()
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
        runs = {each.filename for each in files.infolist() if each.external_attr >> 16 & 0o111}
    assert names == set(tracked)
    assert runs == {"reaper/pipeline/spark/home/bin/java"}, "pip keeps that a program may be run"
    assert {Path(name).suffix for name in names} >= {".lua", ".html", ".css", ".sql", ".typed"}


def test_the_source_distribution_holds_the_tests_and_nothing_that_git_does_not_know(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert names - {"PKG-INFO"} == {name for name in run("git", "ls-files").splitlines() if Path(name).is_file()}


async def test_the_quick_start_works_with_the_wheel(
    installed: str, processes: Processes, server: RedisServer, tmp_path: Path
) -> None:
    where = processes.start(installed, "-I", "-c", "import reaper, workers; print(reaper.__file__, workers.__file__)")
    assert await where.wait() == 0
    assert where.output.count("site-packages") == 2
    await play_quick_start(Shells(processes, server, tmp_path, installed))


async def test_the_testing_page_works_with_the_wheel(installed: str, processes: Processes, tmp_path: Path) -> None:
    write_files("testing.md", tmp_path)
    words = ("-I", "-m", "pytest", "-q", "-W", "error", "--rootdir", str(tmp_path), str(tmp_path))
    tests = processes.start(installed, *words)
    assert await tests.wait() == 0, tests.output
    assert re.search(r"^9 passed", tests.output, re.MULTILINE)
