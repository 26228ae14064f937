"""The parts of `make test-deploy` that need no machine: when it skips, and its record."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.real import engine, machine
from tests.deploy.real.machine import require_machines
from tests.deploy.real.record import BEGIN, END
from tests.deploy.real.stack import denied
from tests.deploy.real.trees import HOST, IMAGE, VARIABLE, NotHereError
from tests.support.processes import ROOT


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotHereError, match="need root"):
        require_machines()


def test_programs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHereError, match=r"need debootstrap, ip, .*, which is not on the PATH"):
        require_machines()
    assert not engine.has_engine()


def test_trees_lie_where_the_variable_says_and_another_list_of_packages_is_another_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    more = HOST._replace(packages=(*HOST.packages, "more"))
    assert {tree.folder.parent for tree in (HOST, IMAGE, more)} == {tmp_path}
    assert len({tree.folder for tree in (HOST, IMAGE, more)}) == 3


def test_what_enters_a_machine_is_a_script_without_faults() -> None:
    assert subprocess.run(["/bin/sh", "-n", str(machine.ENTER)], check=False).returncode == 0


def test_an_acl_log_is_read() -> None:
    log = "count\n1\nobject\nclient|setinfo\nusername\nworker\ncount\n2\nobject\nxadd\nusername\nworker\n"
    assert denied(log) == ["xadd"]
    assert denied("(empty array)") == []


RUN = '''
import pytest


@pytest.fixture
def broken():
    yield
    raise RuntimeError


def test_good(request):
    """Something is started, and works.

    More of it.
    """


def test_bad(broken):
    """Something is ended."""


def test_left_out():
    """Something is left out."""
    pytest.skip("it is not here")
'''
PLUGIN = """\
from pathlib import Path

from tests.deploy.real.record import RAN_ON, Record


def pytest_configure(config):
    config.stash[RAN_ON] = ["Docker 1"]
    config.pluginmanager.register(Record(Path({file!r})))
"""


def _run(folder: Path) -> str:
    """Run the tests that lie there, with their plugin; return what is printed."""
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder))
    return subprocess.run([*words, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_the_record_is_a_table_in_the_place_that_is_marked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}of earlier\n{END}after\n")
    (tmp_path / "test_it.py").write_text(RUN)
    (tmp_path / "conftest.py").write_text(PLUGIN.format(file=str(page)))
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    ]
    subprocess.run([*words, str(tmp_path)], cwd=ROOT, capture_output=True, check=False)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}")
    assert text.endswith(f"{END}after\n")
    assert "of earlier" not in text
    assert "; Docker 1." in text
    assert (", commit " in text) == (ROOT / ".git").exists()
    rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("| Some")]
    assert rows == [
        ["| Something is started, and works", "passed"],
        ["| Something is ended", "failed"],
        ["| Something is left out", "skipped"],
    ]


def test_a_run_in_which_nothing_ran_leaves_the_record(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}of earlier\n{END}")
    (tmp_path / "test_it.py").write_text("import pytest\n\n\ndef test_left_out():\n    pytest.skip('it is not here')\n")
    (tmp_path / "conftest.py").write_text(PLUGIN.format(file=str(page)))
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run([*words, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 skipped" in done.stdout, done.stdout + done.stderr
    assert page.read_text() == f"{BEGIN}of earlier\n{END}"
