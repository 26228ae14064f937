"""Some thousand random plays in each configuration: nothing is lost, done twice, or convicted by mistake."""

from collections import Counter

import pytest

from tests.explorer.board import Board
from tests.explorer.plays import CONFIGURATIONS, play

PLAYS = 150


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_plays_keep_the_promises(board: Board, name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, PLAYS + 1):
        result = play(board, CONFIGURATIONS[name], seed)
        counts.update(result.counts)
        assert not result.broken, "\n".join([f"seed {seed}: {result.broken}", *map(str, result.log)])
    print(dict(counts))
