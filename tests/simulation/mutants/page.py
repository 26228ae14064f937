"""Writes docs/internals/mutants.md, and the result of each mutant to mutants.csv beside it."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.simulation.mutants.catalogue import ROOT, Mutant
from tests.simulation.mutants.pure import Score, scores
from tests.simulation.mutants.results import NONE, Result
from tests.simulation.mutants.tiers import Catch, Tier

PAGE = ROOT / "docs/internals/mutants.md"
_ENDED = "ended"
_COLUMNS = ("name", "tier", "by", "seconds", "alone")
_HEAD = """# Mutants

<!-- Written by `make mutants`. Each mutant is described in tests/simulation/mutants/*.toml. -->

A test of the tests: each mutant is the product with one fault. The tests run on it until one of them fails.
There are four tiers of tests:

- *unit* runs in one process
- *scripts* compares the whole state before and after one script
- *faults* runs several processes with faults
- *simulation* runs everything in virtual time, by seed

The tests closest to the changed file run first, then the simulation, then all of each tier. A test that fails runs
once more alone, to exclude chance. `make mutants` runs all, which takes long, and continues an interrupted run.
`make mutants MUTANTS="--only NAME"` runs one.

[mutants.csv](mutants.csv) has the test or seed that found each mutant, and the seconds that it took. Its last column
is the first seed of [run 0](simulation.md) that finds the mutant, or *none*.
`make mutants MUTANTS=--stories` plays them.
"""

_PURE_HEAD = """## Pure parts

mutmut changes each operator, number and word of these modules, one at a time, and
runs their unit tests. Some changes make no difference, for example in the words of a log line.
"""


def write(mutants: Sequence[Mutant], results: Mapping[str, Result], place: Path = PAGE) -> None:
    """Write the page. Older results stay if no newer one exists here, because a whole run takes many sittings."""
    said = place.read_text(encoding="utf-8") if place.exists() else ""
    table = place.with_suffix(".csv")
    known = _found_before(table.read_text(encoding="utf-8") if table.exists() else "")
    for name, result in results.items():
        before = known.get(name)
        if before is None or result.caught or result.ended:
            known[name] = replace(result, alone=result.alone or (before.alone if before else ""))
        elif result.alone:
            before.alone = result.alone
    found = scores()
    pure = _pure(found) if found else [said[said.index("## Pure parts") :]] if "## Pure parts" in said else []
    place.write_text("\n".join([_HEAD, _summary(mutants, known), _table(mutants, known), *pure]), encoding="utf-8")
    table.write_text(_rows(mutants, known), encoding="utf-8")


def _found_before(text: str) -> dict[str, Result]:
    """Read the result of each mutant from the table."""
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        name, tier, by, seconds, alone = (row[column] for column in _COLUMNS)
        catch = Catch(tier, by, "", float(seconds)) if tier in list(Tier) else None
        found[name] = Result(name, "", "", catch, ended=bool(tier), alone=alone)
    return found


def _rows(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(_COLUMNS)
    for result in (results[mutant.name] for mutant in mutants if mutant.name in results):
        caught = result.caught
        found = (
            (caught.tier, _told(caught), f"{caught.seconds:.0f}")
            if caught
            else (_ENDED if result.ended else "", "", "")
        )
        table.writerow([result.name, *found, result.alone])
    return out.getvalue()


def _by_subject(mutants: Sequence[Mutant]) -> dict[str, list[Mutant]]:
    subjects: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        subjects.setdefault(mutant.subject, []).append(mutant)
    return subjects


def _summary(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    found = Counter(_state(mutant, results.get(mutant.name)) for mutant in mutants)
    return (
        "| "
        + " | ".join(["mutants", *found])
        + " |\n|"
        + "--:|" * (1 + len(found))
        + "\n| "
        + " | ".join(map(str, [len(mutants), *found.values()]))
        + " |\n\n"
        + _alone(mutants, results)
    )


def _alone(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    of_core = [results.get(mutant.name) for mutant in mutants if mutant.is_of_core and not mutant.harmless]
    played = [result for result in of_core if result and result.alone]
    found = sum(1 for result in played if result.alone != NONE)
    return (
        f"The stories of run 0 alone find {found} of the {len(played)} mutants of scripts, recovery and loop on which "
        f"they were played. There are {len(of_core)} mutants of this kind.\n"
    )


def _state(mutant: Mutant, result: Result | None) -> str:
    if result and result.caught:
        return f"found by {Tier(result.caught.tier)}"
    if mutant.harmless:
        return "breaks nothing"
    return "**survived**" if result and result.ended else "not run yet"


def _table(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    """Return a row for each subject. It names mutants that no test found, or that did not run yet."""
    lines = ["| subject | mutants | not found |", "|---|--:|---|"]
    for subject, some in _by_subject(mutants).items():
        states = {mutant: _state(mutant, results.get(mutant.name)) for mutant in some}
        left = [f"`{mutant.name}` ({state})" for mutant, state in states.items() if not state.startswith("found")]
        lines.append(f"| {subject} | {len(some)} | {', '.join(left)} |")
    return "\n".join([*lines, ""])


def _pure(found: Sequence[Score]) -> list[str]:
    if not found:
        return []
    changes, caught = sum(score.changes for score in found), sum(score.found for score in found)
    rows = [f"| `{score.module}` | {score.changes} | {score.found} | {score.percent:.0f} % |" for score in found]
    return [
        _PURE_HEAD,
        "| module | changes | found | score |\n|---|--:|--:|--:|",
        *rows,
        f"| together | {changes} | {caught} | {100 * caught / changes:.0f} % |\n",
    ]


def _told(caught: Catch) -> str:
    if not caught.said:  # as the page has it
        return caught.by
    if caught.tier == Tier.SIMULATION:
        return f"{caught.by}: {caught.said}"
    test = caught.by.partition("[")[0].removeprefix("tests/")
    return test or caught.said
