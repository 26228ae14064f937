"""The tiers that may find a mutant, the cheap ones first. Each is a command that fails."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from tests.simulation.mutants.catalogue import ROOT, Mutant
from tests.simulation.mutants.first_failure import VARIABLE
from tests.simulation.mutants.near import near

NEAR_S, WHOLE_S, SIMULATION_S = 1_200, 5_400, 1_200
"""What runs for longer than this stands still: that is found, too."""
SIMULATION = ("-m", "tests.simulation")
RUN = (*SIMULATION, "--run", "0", "--first-failure")
_FAILED_SEED = re.compile(r"^seed (?P<seed>\d+) fails:\n(?P<said>[^\n]*)", re.MULTILINE)
PASSED, FAILED, INTERRUPTED, NO_TESTS = 0, 1, 2, 5
"""What pytest ends with. Several processes of it that are to stop at the first failure are interrupted."""
ANEW = 3
"""So often is a step run anew without a test that failed once and not again."""


class Tier(StrEnum):
    """Kinds of tests."""

    UNIT = "unit"
    """In one process: pure parts, and parts with a server."""
    SCRIPTS = "scripts"
    """One script, and the whole state before and after."""
    FAULTS = "faults"
    """Several processes and faults."""
    SIMULATION = "simulation"
    """Many interleavings of everything, by seed, in virtual time."""


FOLDERS = {
    Tier.UNIT: ("protocol", "reaper", "workers", "operator", "support", "telemetry", "library"),
    Tier.SCRIPTS: ("scripts",),
    Tier.FAULTS: ("faults", "drill"),
}


@dataclass(frozen=True, slots=True)
class Catch:
    """The command that found a mutant."""

    tier: str
    by: str
    """The test, or the seed."""
    said: str
    """The first words of what it said, or the promise that was broken."""
    seconds: float
    """From the start of the command."""


@dataclass(frozen=True, slots=True)
class Step:
    """Some tests of one tier, or a simulation."""

    tier: Tier
    name: str
    tests: tuple[str, ...] = ()
    at_most_s: int = NEAR_S

    @property
    def is_whole(self) -> bool:
        """Tell whether it is a whole tier."""
        return self.at_most_s == WHOLE_S

    def run(self, root: Path, processes: int) -> Catch | None:
        """Run it in a copy of the repository. Return the failing test, if any."""
        if self.tier is Tier.SIMULATION:
            return _simulate(root, self.at_most_s)
        doubted: list[str] = []
        for _ in range(ANEW):
            found = _run_tests(root, self, [*self.tests, *(f"--deselect={test}" for test in doubted)], processes)
            # A failure by chance would count as found, so it has to fail once more alone.
            if found is None or not found.by or _run_tests(root, self, [found.by], 0):
                return found
            doubted.append(found.by)
        return None


def steps(mutant: Mutant, tiers: Iterable[Tier]) -> list[Step]:
    """Return the tiers in order, which are the tests closest to the changed files, the simulation, and then
    everything."""
    wanted = set(tiers)
    files = [*mutant.near, *near(edit.file for edit in mutant.edits)]
    first = [
        Step(tier, f"{tier}, near", tests)
        for tier in FOLDERS
        if tier in wanted and (tests := tuple(dict.fromkeys(file for file in files if _tier_of(file) is tier)))
    ]
    if Tier.SIMULATION in wanted:
        first.append(simulation())
    whole = [
        Step(tier, tier, tuple(f"tests/{folder}" for folder in FOLDERS[tier]), WHOLE_S)
        for tier in FOLDERS
        if tier in wanted
    ]
    return first + whole


def simulation() -> Step:
    """Return the step that plays a run of stories."""
    return Step(Tier.SIMULATION, Tier.SIMULATION, at_most_s=SIMULATION_S)


def again(found: Catch) -> Step:
    """Return the step that found a mutant before."""
    return Step(Tier(found.tier), f"{found.tier}, as before", (found.by,))


def _tier_of(file: str) -> Tier:
    folder = file.split("/")[1]
    return next((tier for tier, folders in FOLDERS.items() if folder in folders), Tier.UNIT)


def _run_tests(root: Path, step: Step, words: Sequence[str], processes: int) -> Catch | None:
    spread = ["-n", str(processes), "--dist", "loadscope"] if processes and step.is_whole else []
    with TemporaryDirectory(prefix="mutant-") as folder:
        place = Path(folder) / "failure"
        began = monotonic()
        code, told = _run(
            root,
            ["-m", "pytest", "-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider",
             "-p", "tests.simulation.mutants.first_failure", *spread, *words],
            step.at_most_s,
            {VARIABLE: str(place)},
        )  # fmt: skip
        took = round(monotonic() - began, 1)
        test, _, said = place.read_text(encoding="utf-8").partition("\n") if place.exists() else ("", "", "")
    if code is None:
        return Catch(step.tier, "", f"{step.name}: no end after {step.at_most_s} s", took)
    if code in (PASSED, NO_TESTS):
        return None
    if code not in (FAILED, INTERRUPTED if spread else FAILED) or not test:
        raise RuntimeError(f"pytest ended with {code} in {root}:\n{told[-2000:]}")
    return Catch(step.tier, test, said, took)


def _simulate(root: Path, at_most_s: int) -> Catch | None:
    """Play the run of `make test` until a story fails. Raises RuntimeError if it fails without the mutant, too."""
    began = monotonic()
    code, told = _run(root, RUN, at_most_s, {})
    took = round(monotonic() - began, 1)
    failed = _FAILED_SEED.search(told)
    if code is None or (code != PASSED and failed is None):
        said = f"no end after {at_most_s} s" if code is None else (told.strip().splitlines() or ["it said nothing"])[-1]
        return None if said.startswith("never reached") else Catch(Tier.SIMULATION, "", said, took)
    if failed is None:
        return None
    if _run(ROOT, [*SIMULATION, failed["seed"]], at_most_s, {})[0] != PASSED:
        raise RuntimeError(f"seed {failed['seed']} fails without any mutant: {failed['said'].strip()}")
    return Catch(Tier.SIMULATION, f"seed {failed['seed']}", failed["said"].strip(), took)


def _run(root: Path, words: Sequence[str], at_most_s: float, environment: dict[str, str]) -> tuple[int | None, str]:
    """Run Python in ``root``. Return its exit code (None after a timeout) and its output."""
    # The environment has the repository itself installed, so programs that the tests start must import from the copy,
    # too.
    told = os.environ | {"PYTHONPATH": str(root)} | environment
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=root,
        env=told,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=at_most_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, output
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output
