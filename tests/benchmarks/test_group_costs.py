"""The page on many groups and the program that computes its formulas say the same, and agree with the measurements."""

import re
from pathlib import Path

import pytest

from tests.benchmarks.group_costs import (
    EACH_PROCESS,
    LARGE,
    REPLICA_PIPELINE_US,
    REPLICA_US,
    SERVER_PIPELINE_US,
    SERVER_US,
    Deployment,
)

FILE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
PAGE = FILE.read_text(encoding="utf-8").replace("\N{MULTIPLICATION SIGN}", "*")
ROWS = re.findall(
    r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \| (\d+) MB \| ([\d.]+) s \| ([\d.]+) s \|$", PAGE, re.MULTILINE
)
"""Groups, replicas, cores of Redis and of a replica, memory of a replica, seconds until held, and of a failover."""
BY_PART, BY_CORE = 0.25, 0.004
"""The formulas are so near to what was measured, as a part of that or of a core."""


def test_the_page_has_the_constants() -> None:
    each = f"{EACH_PROCESS:.1%}".replace("%", " %")
    assert f"{each} + requests/s * ({SERVER_US} µs + {SERVER_PIPELINE_US} µs / b) / M" in PAGE
    assert f"{each} + requests/s * ({REPLICA_US} µs + {REPLICA_PIPELINE_US} µs / b) / R" in PAGE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_formulas_agree_with_what_was_measured(row: tuple[str, ...]) -> None:
    groups, replicas, server, replica, memory, _, failover = [float(value.replace(",", "")) for value in row]
    computed = Deployment(int(groups), int(replicas))
    assert computed.core_of_master == pytest.approx(server / 100, rel=BY_PART, abs=BY_CORE)
    assert computed.core_of_replica == pytest.approx(replica / 100, rel=BY_PART, abs=BY_CORE)
    assert computed.memory_mb == pytest.approx(memory, rel=BY_PART)
    assert failover <= computed.ttl_s + 0.5


def test_three_sizes_were_measured() -> None:
    assert [row[0] for row in ROWS] == ["1", "1,000", "10,000"]


def test_the_page_computes_a_large_deployment() -> None:
    """By the program: ``python -m tests.benchmarks.group_costs``."""
    assert (
        f"{LARGE.groups:,} streams on {LARGE.masters} masters with {LARGE.replicas} replicas need "
        f"{round(LARGE.requests_s, -2):,.0f} requests a second" in PAGE
    )
    assert (
        f"{LARGE.core_of_master * 100:.0f} % of a core of each master, {LARGE.core_of_replica * 100:.0f} % of a core "
        f"and {round(LARGE.memory_mb, -1):.0f} MB of each replica" in PAGE
    )
