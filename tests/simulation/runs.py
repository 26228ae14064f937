"""Runs: stories of all families. A run has to reach every situation of `tests.simulation.situations`."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, zip_longest
from pathlib import Path

from tests.simulation.draw import LONG_JOBS, LONG_JOBS_EMBEDDED, OUTAGES

STORIES_OF = {1: 170, OUTAGES: 50, LONG_JOBS: 40, LONG_JOBS_EMBEDDED: 40}
"""How many stories of each family a run has, by the family's first seed."""
CHOSEN_OF = {1: 90, OUTAGES: 20, LONG_JOBS: 20, LONG_JOBS_EMBEDDED: 20}
"""The same for run 0, which `make test` plays."""
STORIES = sum(STORIES_OF.values())
AT_A_TIME = 10
"""So many stories of a family come before the next family has its turn."""
SETTING_UP = 5_000
"""So many turns of the event loop cost as much as the beginning and the end of a story."""
CHOSEN = Path(__file__).with_name("chosen.txt")
"""The seeds of run 0, as ``python -m tests.simulation --choose`` has written them."""


def family_of(seed: int) -> int:
    """Return the first seed of the family that a seed belongs to."""
    return max(first for first in STORIES_OF if first <= seed)


def seeds_of(run: int) -> list[int]:
    """Return the seeds of a run, in the order in which they are played.

    Run 0 is the one of `make test`. Other runs are twice as long, and their seeds follow each other.
    """
    if run == 0:
        return [int(seed) for seed in CHOSEN.read_text(encoding="ascii").split()]
    families = [range(first + run * count, first + (run + 1) * count) for first, count in STORIES_OF.items()]
    return _in_turn([list(family) for family in families])


def choose(reached: Mapping[int, AbstractSet[str]], turns: Mapping[int, int]) -> list[int]:
    """Choose the seeds of run 0, so that rare situations are reached more than once, in short stories.

    ``reached`` has the situations that the story of each seed has reached, ``turns`` the length of each story.
    """
    times, families = Counter[str](), list[list[int]]()
    for first, count in CHOSEN_OF.items():
        left = {seed: names for seed, names in reached.items() if family_of(seed) == first}
        family = list[int]()
        for _ in range(count):
            seed = max(
                left, key=lambda one: (sum(0.5 ** times[name] for name in left[one]) / (turns[one] + SETTING_UP), -one)
            )
            times.update(left.pop(seed))
            family.append(seed)
        families.append(family)
    return _in_turn(families)


def _in_turn(families: list[list[int]]) -> list[int]:
    parts = [[seeds[at : at + AT_A_TIME] for at in range(0, len(seeds), AT_A_TIME)] for seeds in families]
    return list(chain.from_iterable(chain.from_iterable(zip_longest(*parts, fillvalue=[]))))
