"""Keeps tests together in one process of ``make test`` if they share a Spark session, or a file and a server.

There is one Spark session, and it begins before anything else. Half of the cost of a test there is code that Java loads
and compiles at its first call. A second session costs as much as a fifth of all tests of Spark.

pytest-xdist has marks for that, and writes their names into node IDs. With pytest 9.2 that has no effect. Each test
went by itself, without an error, and every process started Spark. So this is done in the scheduler itself.
"""

import re
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

_SERVER = re.compile(r"[-\[]((?:valkey-)?\d+\.\d+\.\d+)[-\]]")
_EACH_BY_ITSELF = {"test_stories", "test_explorer"}
"""Files whose tests share nothing, and compute for long."""
_PIPELINE = Path(__file__).resolve().parents[1] / "pipeline"
_SPARK_FILES = {file.stem for file in _PIPELINE.glob("test_*.py") if "SparkSession" in file.read_text()}

_LONG = {"test_soak", "test_drill", "test_quick_start", "test_sharing", "test_explorer"}
"""Other files whose tests take long. At the end of a run, all processes would wait for one of them."""


def begins_early(path: Path) -> tuple[bool, bool]:
    """Return the sort key of a file. The files with the greatest key begin first."""
    return uses_spark(path), path.stem in _LONG


def uses_spark(path: Path) -> bool:
    """Tell whether the tests of this file may start Spark."""
    return path.parent.name == _PIPELINE.name and path.stem in _SPARK_FILES


def group_of(node_id: str) -> str:
    """Return the group of a test, which is a Spark session, or else the fixtures of its file and its server."""
    path = Path(node_id.partition("::")[0])
    if uses_spark(path):
        return "spark"  # one session for many files, because each start of Java costs as much as ten tests
    if path.stem in _EACH_BY_ITSELF:
        return node_id
    server = _SERVER.search(node_id)
    return f"{path.stem} {server[1] if server else ''}"


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out whole groups, the next one to whichever process is free."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
