"""Runs the tests on mutants, and writes docs/internals/mutants.md: ``python -m tests.simulation.mutants``."""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.simulation.mutants import page, pure
from tests.simulation.mutants.catalogue import ROOT, Mutant, load
from tests.simulation.mutants.results import NONE, Result, known
from tests.simulation.mutants.tiers import Tier, again, simulation, steps
from tests.simulation.mutants.tree import hash_of, mutated


def main(words: Sequence[str] | None = None) -> int:
    """Return 0 where every mutant was found, 1 where some survived."""
    asked = _parser().parse_args(words)
    mutants = load()
    wanted = [mutant for mutant in mutants if not asked.only or any(part in mutant.name for part in asked.only)]
    if not wanted:
        print(f"no mutant is called {' or '.join(asked.only)}", file=sys.stderr)
        return 2
    tree = hash_of(ROOT)
    tiers = tuple(asked.tier or Tier)
    if asked.stories:
        for mutant in wanted:
            if mutant.is_of_core:
                print(f"{mutant.name}: {_play_stories(mutant, tree, anew=asked.anew)}", flush=True)
    elif not asked.page:
        with ThreadPoolExecutor(asked.jobs) as room:
            for result in room.map(lambda one: _try(one, tree, tiers, asked), wanted):
                print(_line(result), flush=True)
    if asked.pure and not (asked.page or asked.stories):
        pure.run()
    results = {mutant.name: its for mutant in mutants if (its := known(mutant))}
    page.write(mutants, results)
    if asked.stories:
        return 0
    survivors = [
        mutant.name
        for mutant in wanted
        if not mutant.harmless and (its := results.get(mutant.name)) and its.ended and not its.caught
    ]
    found = sum(1 for mutant in wanted if (its := results.get(mutant.name)) and its.caught)
    print(f"{found} of {len(wanted)} mutants were found, {len(survivors)} survived: {', '.join(survivors) or 'none'}")
    return 1 if survivors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="those with NAME in their names")
    parser.add_argument("--tier", action="append", type=Tier, choices=list(Tier), help="only these kinds of tests")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="of pytest, where it runs a whole tier (%(default)s)")
    parser.add_argument("--near", action="store_true", help="no whole tiers: what is found is found fast or not yet")
    parser.add_argument("--pure", action="store_true", help="have mutmut change the pure parts, too")
    parser.add_argument("--stories", action="store_true", help="only play the stories on each mutant of the core")
    parser.add_argument("--anew", action="store_true", help="forget what is known")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page of what is known")
    return parser


def _try(mutant: Mutant, tree: str, tiers: Sequence[Tier], asked: argparse.Namespace) -> Result:
    before = None if asked.anew else known(mutant)
    if before and before.tree == tree and (before.caught or before.ended):
        return before
    result = before if before and before.tree == tree else Result(mutant.name, mutant.digest, tree)
    todo = [step for step in steps(mutant, tiers) if not (asked.near and step.is_whole)]
    if before and before.caught and before.caught.by:
        todo.insert(0, again(before.caught))
    with mutated(ROOT, mutant) as copy:
        for step in todo:
            if step.name in result.survived:
                continue
            result.caught = step.run(copy, asked.processes)
            if result.caught:
                break
            result.survived.append(step.name)
            result.save()
    result.ended = result.caught is None and not asked.near and set(tiers) == set(Tier)
    result.save()
    return result


def _play_stories(mutant: Mutant, tree: str, *, anew: bool) -> str:
    """Return the seed that finds a mutant among the stories of a run, or `NONE`."""
    result = known(mutant)
    if result is None or result.tree != tree:
        result = Result(mutant.name, mutant.digest, tree)
    if anew or not result.alone:
        with mutated(ROOT, mutant) as copy:
            found = simulation().run(copy, 1)
        result.alone = (found.by or found.said) if found else NONE
        result.save()
    return result.alone


def _line(result: Result) -> str:
    if result.caught is None:
        return f"{result.name}: {'SURVIVED' if result.ended else 'not found by ' + ', '.join(result.survived)}"
    return (
        f"{result.name}: {result.caught.tier}, {result.caught.by}, {result.caught.seconds:g} s ({result.caught.said})"
    )


if __name__ == "__main__":
    sys.exit(main())
