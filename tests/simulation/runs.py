"""Runs: 300 stories of all families. A run has to reach every situation of `tests.simulation.situations`."""

from itertools import chain, zip_longest

from tests.simulation.draw import LONG_JOBS, LONG_JOBS_EMBEDDED, OUTAGES

STORIES_OF = {1: 170, OUTAGES: 50, LONG_JOBS: 40, LONG_JOBS_EMBEDDED: 40}
"""How many stories of each family a run has, by the family's first seed."""
STORIES = sum(STORIES_OF.values())
AT_A_TIME = 10
"""So many stories of a family come before the next family has its turn."""


def seeds_of(run: int) -> list[int]:
    """Return the seeds of a run, in the order in which they are played. ``run``: 0 = the one of `make test`."""
    families = [range(first + run * count, first + (run + 1) * count) for first, count in STORIES_OF.items()]
    parts = [[seeds[at : at + AT_A_TIME] for at in range(0, len(seeds), AT_A_TIME)] for seeds in families]
    return list(chain.from_iterable(chain.from_iterable(zip_longest(*parts, fillvalue=range(0)))))
