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


SERVER_PLANNED = (
    *with_faults("long-jobs:60@0.4+1", "pause-clients:writes@0.5+1", "long-jobs:60@2.4+1", "fail-over@2.5+0.8"),
    *with_faults("long-jobs:60@7.9+1", "pause-clients:all@8+1", "long-jobs:60@9.9+1", "shut-down@10+0.8"),
    "--limit", "900", "--no-bare-worker",
)  # fmt: skip
"""The server postpones commands, fails over, and shuts down, each while jobs run."""


def server_planned_lost_nothing(told: Any) -> None:
    """Assert that `SERVER_PLANNED` was played, and that all of its jobs were settled."""
    assert (told["settled"], told["lost"], told["missed_faults"], told["objections"]) == (1140, 0, [], [])
    played = [fault["kind"] for fault in told["faults"] if fault["kind"] != "long-jobs"]
    assert sorted(played) == ["fail-over", "pause-clients", "pause-clients", "shut-down"]
