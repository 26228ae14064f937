"""The tests that ``make test`` runs and those that it leaves to ``make test-matrix``, as a run lists them."""

import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.support.processes import ROOT
from tests.support.servers import binaries_at_hand, default_binary, lane_of
from tests.support.tiers import in_matrix

FILES = (
    "tests/scripts/test_journal.py",
    "tests/operator/test_replicas.py",
    "tests/operator/test_doctor.py",
    "tests/pipeline/test_kill.py",
)


def versions_by_file(*words: str) -> dict[str, set[str]]:
    """Return the servers that the tests of `FILES` run on."""
    listed = collected(*words, *FILES)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    found = defaultdict[str, set[str]](set)
    for file, case in re.findall(r"^(tests/\S+?\.py)::.+\[(.+)\]", listed.stdout, re.MULTILINE):
        found[file] |= {
            lane for lane in ALL if lane == case or case.startswith(f"{lane}-") or case.endswith(f"-{lane}")
        }
    return dict(found)


def collected(*words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


DEFAULT = {lane_of(default_binary())}
ALL = {lane_of(binary) for binary in binaries_at_hand()}
NEWEST = {lane_of(binaries_at_hand()[-1])}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [ALL, DEFAULT, ALL, None]),
        in_matrix(("--matrix",), [ALL, ALL, ALL, ALL]),
        in_matrix(("--server", *NEWEST), [NEWEST, NEWEST, NEWEST, None]),
    ],
    ids=["make test", "make test-matrix", "one server"],
)
def test_contracts_run_on_every_server_the_rest_on_one_and_what_is_heavy_not_at_all(
    words: tuple[str, ...], expected: list[set[str] | None]
) -> None:
    found = versions_by_file(*words)
    assert [found.get(file) for file in FILES] == expected


def test_the_server_that_everybody_has_is_the_one_of_the_package() -> None:
    assert lane_of(default_binary()) == "valkey-9.1.2"
