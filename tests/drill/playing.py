"""Words and figures that tests of a drill and of the soak share."""

import json
from pathlib import Path
from typing import Any

from tests.support.patience import scaled

EITHER = ("reaper", "embedded")
"""A drill has a dozen processes: what they do without a reaper is for the matrix, as is what `tests/faults` has."""


def timeouts() -> list[str]:
    """Return timeouts as short as usual, and as long as this machine is slow."""
    return ["--visibility-timeout", f"{scaled(2):g}", "--lease-ttl", f"{scaled(1.5):g}"]


def with_faults(*each: str) -> list[str]:
    """Return the words that have these faults played."""
    return [word for fault in each for word in ("--fault", fault)]


def read(report: Path) -> Any:
    """Return what a drill has written."""
    return json.loads(report.read_text())


def lasted(fault: dict[str, Any]) -> float:
    """Return how long a fault was there: the report rounds both ends to milliseconds."""
    return float(round(fault["until"] - fault["time"], 3)) + 0.001
