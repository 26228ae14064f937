"""Which process of ``make test`` runs what: seen from outside, for an xdist or pytest that ignores it says nothing."""

import re
import subprocess
import sys
from collections import defaultdict

from tests.support.distribution import SPARK_SESSIONS, group_of
from tests.support.processes import ROOT


def test_a_group_is_a_spark_session_or_a_file_with_a_server() -> None:
    sparks = {group_of(f"tests/pipeline/{file.name}::test_x") for file in (ROOT / "tests/pipeline").glob("test_*.py")}
    assert sparks == {f"spark {n}" for n in range(SPARK_SESSIONS)}
    groups = [group_of(f"tests/web/test_api.py::test_x{case}") for case in ("", "[7.0.15]", "[7.0.15-a]", "[6.2.14]")]
    assert groups == ["test_api ", "test_api 7.0.15", "test_api 7.0.15", "test_api 6.2.14"]


def test_groups_stay_together() -> None:
    shared = ("tests/pipeline/test_compare_verdict.py", "tests/pipeline/test_lint.py")
    assert len({group_of(file) for file in shared}) == 1, "choose two files of one group"
    files = (*shared, "tests/support/test_resp.py")
    words = ("-n", "3", "--dist", "loadscope", "--no-loadscope-reorder", "-v", "-p", "no:cacheprovider")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    processes = defaultdict(set)
    for process, node_id in re.findall(r"^\[(gw\d)\].* PASSED (.+)$", run.stdout, re.MULTILINE):
        processes[group_of(node_id)].add(process)
    assert len(processes) == 2
    assert all(len(used) == 1 for used in processes.values()), processes
