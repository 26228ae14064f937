"""Writes docs/internals/mutants.md."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.simulation.mutants.catalogue import ROOT, Mutant
from tests.simulation.mutants.pure import Score, scores
from tests.simulation.mutants.results import NONE, Result
from tests.simulation.mutants.tiers import Catch, Tier

_ROW = re.compile(
    r"^\| `(?P<name>[\w-]+)` \| (?P<tier>[^|]*) \| (?P<by>[^|]*) \| (?P<seconds>\d*)[ s]* "
    r"\| (?P<alone>[^|]*) \|$",
    re.MULTILINE,
)
PAGE = ROOT / "docs/internals/mutants.md"
_HEAD = """# Mutants

<!-- Written by `make mutants`. Each mutant is described in tests/simulation/mutants/*.toml. -->

A test of the tests: each mutant is the product with one fault. The tests run on it, the cheap ones first, until one
of them fails. There are four tiers: *unit* runs in one process, *scripts* compares the whole state before and after
one script, *faults* runs several processes with faults, and *simulation* runs everything in virtual time, by seed.
The tests closest to the changed file run first, then the simulation, then all of each tier. A test that fails runs
once more alone, to exclude chance. The time is the whole time of the command that found the mutant. `make mutants`
runs all, which takes long, and continues an interrupted run. `make mutants MUTANTS="--only NAME"` runs one.

The last column says whether 300 stories find a mutant of scripts, recovery or the worker's loop by themselves: it has
the first seed of [run 0](simulation.md) that fails, or *none*. `make mutants MUTANTS=--stories` plays them.
"""

_PURE_HEAD = """## Pure parts

mutmut changes each operator, number and word of these modules, one at a time, and
runs their unit tests. Not all that nothing found is a gap: there are words of log lines among it, limits by one
millisecond, and values that come to the same.
"""


def write(mutants: Sequence[Mutant], results: Mapping[str, Result], place: Path = PAGE) -> None:
    """Write the page. What it says already stays where nothing newer is known here: a whole run takes many sittings."""
    said = place.read_text(encoding="utf-8") if place.exists() else ""
    known = _found_before(said)
    for name, result in results.items():
        before = known.get(name)
        if before is None or result.caught or result.ended:
            known[name] = replace(result, alone=result.alone or (before.alone if before else ""))
        elif result.alone:
            before.alone = result.alone
    tables = [_table(*part, known) for part in _by_subject(mutants).items()]
    found = scores()
    pure = _pure(found) if found else [said[said.index(_PURE_HEAD) :]] if _PURE_HEAD in said else []
    place.write_text("\n".join([_HEAD, _summary(mutants, known), *tables, *pure]), encoding="utf-8")


def _found_before(said: str) -> dict[str, Result]:
    """Read what found which mutant from a page."""
    found = {}
    for row in _ROW.finditer(said):
        if row["tier"] in list(Tier):
            catch = Catch(row["tier"], row["by"], "", float(row["seconds"]))
            found[row["name"]] = Result(row["name"], "", "", catch, ended=True, alone=row["alone"].strip())
        elif row["alone"].strip():
            found[row["name"]] = Result(row["name"], "", "", alone=row["alone"].strip())
    return found


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
        f"300 stories alone find {found} of the {len(played)} mutants of scripts, recovery and loop on which they were "
        f"played. There are {len(of_core)} such mutants.\n"
    )


def _state(mutant: Mutant, result: Result | None) -> str:
    if result and result.caught:
        return f"found by {Tier(result.caught.tier)}"
    if mutant.harmless:
        return "breaks nothing"
    return "**survived**" if result and result.ended else "not run yet"


def _table(subject: str, mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    lines = [
        f"## {subject.capitalize()}",
        "",
        "| mutant | found by | test or seed | after | 300 stories |",
        "|---|---|---|--:|---|",
    ]
    for mutant in mutants:
        result = results.get(mutant.name)
        caught = result.caught if result else None
        by = (
            [caught.tier, _told(caught), f"{caught.seconds:.0f} s"]
            if caught
            else [_state(mutant, result), _cell(mutant.harmless), ""]
        )
        alone = _cell(result.alone) if result else ""
        lines.append("| " + " | ".join([f"`{mutant.name}`", *by, alone]) + " |")
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
        return _cell(f"{caught.by}: {caught.said}")
    test = caught.by.partition("[")[0].removeprefix("tests/")
    return f"`{test}`" if test else _cell(caught.said)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
