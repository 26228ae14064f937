"""What ``make test`` runs and what it leaves to ``make test-matrix``, as a run lists it."""

import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.support.processes import ROOT
from tests.support.servers import binaries_at_hand, default_binary, version_of

FILES = (
    "tests/scripts/test_journal.py",
    "tests/operator/test_leader.py",
    "tests/operator/test_doctor.py",
    "tests/pipeline/test_kill.py",
)


def versions_by_file(*words: str) -> dict[str, set[str]]:
    """Return the servers that the tests of `FILES` run on."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *words, *FILES]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = defaultdict(set)
    for file, server in re.findall(r"^(tests/\S+?\.py)::.+[-\[](\d+\.\d+\.\d+)[-\]]", listed, re.MULTILINE):
        found[file].add(server)
    return dict(found)


def name_of(version: tuple[int, ...] | None) -> str:
    return ".".join(map(str, version or ()))


DEFAULT = {name_of(version_of(default_binary()))}
ALL = {name_of(version_of(binary)) for binary in binaries_at_hand()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [ALL, DEFAULT, ALL, None]),
        (("--matrix",), [ALL, ALL, ALL, ALL]),
    ],
    ids=["make test", "make test-matrix"],
)
def test_contracts_run_on_every_server_the_rest_on_one_and_what_is_heavy_not_at_all(
    words: tuple[str, ...], expected: list[set[str] | None]
) -> None:
    found = versions_by_file(*words)
    assert [found.get(file) for file in FILES] == expected


def test_the_server_that_everybody_has_is_the_one_of_the_package() -> None:
    assert version_of(default_binary()) == (6, 2, 14)
