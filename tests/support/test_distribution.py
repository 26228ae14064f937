"""Which process of ``make test`` runs what: seen from outside, for an xdist or pytest that ignores it says nothing."""

import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.support.distribution import group_of
from tests.support.processes import ROOT


def test_a_group_is_a_spark_session_or_a_file_with_a_server() -> None:
    files = [file.name for file in (ROOT / "tests/pipeline").glob("test_*.py")]
    groups = {file: group_of(f"tests/pipeline/{file}::test_x") for file in files}
    assert {groups[file] for file in ("test_ingest.py", "test_redis_stream_spark.py", "test_report.py")} == {"spark"}
    assert groups["test_redis_stream_reading.py"] == "test_redis_stream_reading ", (
        "it needs Spark's types, not its Java"
    )
    story = "tests/simulation/test_stories.py::test_x[26]"
    assert group_of(story) == story
    cases = ("", "[7.0.15]", "[7.0.15-a]", "[a-6.2.14-b]", "[valkey-9.1.2]", "[valkey-9.1.2-b]")
    named = [group_of(f"tests/web/test_api.py::test_x{case}") for case in cases]
    servers = ["", "7.0.15", "7.0.15", "6.2.14", "valkey-9.1.2", "valkey-9.1.2"]
    assert named == [f"test_api {server}" for server in servers]


@pytest.mark.matrix
def test_groups_stay_together() -> None:
    shared = (  # none of them starts Spark
        "tests/pipeline/test_maintenance.py::test_a_day_is_kept_while_a_part_of_it_is_young_enough",
        "tests/pipeline/test_lake.py::test_a_lake_has_one_ingester_at_a_time",
    )
    assert len({group_of(file) for file in shared}) == 1, "choose two files of one group"
    files = (*shared, "tests/support/test_resp.py")
    words = ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-v", "-p", "no:cacheprovider")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    processes = defaultdict(set)
    for process, node_id in re.findall(r"^\[(gw\d)\].* PASSED (.+)$", run.stdout, re.MULTILINE):
        processes[group_of(node_id)].add(process)
    assert len(processes) == 2
    assert all(len(used) == 1 for used in processes.values()), processes
