"""Tests the pure parts with the mutation tool mutmut, which changes each operator, number and word, and counts the
found changes.

Its modules and tests are in pyproject.toml. It forks for each change, and a thousand take minutes.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation.mutants.catalogue import ROOT
from tests.simulation.mutants.results import FOLDER
from tests.simulation.mutants.tree import copied

PLACE = FOLDER / "pure.json"
_RESULT = re.compile(r"^\s*(?P<module>[\w.]+)\.[^.\s]+__mutmut_\d+: (?P<state>[a-z ]+)$", re.MULTILINE)
_NOT_FOUND = frozenset({"survived", "no tests"})
_NOT_RUN = "not checked"


@dataclass(frozen=True, slots=True)
class Score:
    """The number of changes in one module, and the number that a test found."""

    module: str
    changes: int
    found: int

    @property
    def percent(self) -> float:
        """Found of a hundred."""
        return 100 * self.found / self.changes


def run() -> None:
    """Run mutmut in a copy of the repository, and keep what it found. Raises RuntimeError where it does not run."""
    with copied(ROOT) as copy:
        mutmut = [sys.executable, "-m", "mutmut"]
        made = subprocess.run([*mutmut, "run"], cwd=copy, capture_output=True, text=True, check=False)
        told = subprocess.run(
            [*mutmut, "results", "--all", "true"], cwd=copy, capture_output=True, text=True, check=False
        )
        if made.returncode or told.returncode:
            raise RuntimeError(f"mutmut does not run:\n{(made.stdout + made.stderr)[-2000:]}")
    keep(told.stdout)


def keep(told: str) -> None:
    """Keep the output of ``mutmut results``."""
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_text(json.dumps(read(told), indent=1), encoding="utf-8")


def read(told: str) -> dict[str, dict[str, int]]:
    """Read ``mutmut results``, and count the ends of changes by module."""
    states: dict[str, Counter[str]] = {}
    for row in _RESULT.finditer(told):
        if row["state"] != _NOT_RUN:
            states.setdefault(row["module"], Counter())[row["state"]] += 1
    return {module: dict(found) for module, found in sorted(states.items())}


def scores() -> list[Score]:
    """Return the findings of the last run, module by module. Empty without a run."""
    if not PLACE.exists():
        return []
    kept: Mapping[str, Mapping[str, int]] = json.loads(PLACE.read_text(encoding="utf-8"))
    return [
        Score(module, sum(states.values()), sum(n for state, n in states.items() if state not in _NOT_FOUND))
        for module, states in kept.items()
    ]
