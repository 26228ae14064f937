"""Random plays in each configuration: nothing is lost, done twice, or convicted by mistake."""

from collections import Counter

import pytest

from tests.explorer.board import Board
from tests.explorer.mutants import MUTANTS, Mutant
from tests.explorer.plays import CONFIGURATIONS, Result, play
from tests.support.servers import RedisServer
from tests.support.tiers import in_matrix

PLAYS = 1_000
PLAYS_OF_MUTANTS = 1_500
LATE = {"an old call is carried out"}
"""Mutants that few plays find."""
BANDS = {
    "crashed": (2_000, 4_500),
    "rejected": (80, 700),
    "resent": (8, 150),
    "late": (50, 600),
    "old": (0, 50),
    "released": (1_500, 4_000),
    "quarantined": (800, 2_500),
    "recovered": (500, 2_500),
}
"""What happens in 1,000 plays. An error of the explorer once hid behind a counter that was too high."""
HOLDERS = {"fenced": (200, 900)}
ONLY_OURS = {"rejected", "resent", "late", "old"}
"""What plain workers do not do."""


def told(seed: int, result: Result) -> str:
    return "\n".join([f"seed {seed}: {result.broken}", *map(str, result.log)])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_plays_keep_the_promises(board: Board, name: str) -> None:
    counts, setting = Counter[str](), CONFIGURATIONS[name]
    for seed in range(1, PLAYS + 1):
        result = play(board, setting, seed)
        counts.update(result.counts)
        assert not result.broken, told(seed, result)
    bands = BANDS | (HOLDERS if setting.recovery == "reaper" else {})
    outside = {
        what: counts[what]
        for what, (least, most) in bands.items()
        if not (setting.plain and what in ONLY_OURS) and not least <= counts[what] <= most
    }
    assert outside == {}, dict(counts)


@pytest.mark.parametrize("name", [in_matrix(name) if name in LATE else name for name in MUTANTS])
def test_a_script_without_one_of_its_rules_breaks_a_promise(server: RedisServer, name: str) -> None:
    mutant: Mutant = MUTANTS[name]
    board = Board(server.port, mutant.change)
    try:
        plays = (play(board, CONFIGURATIONS[mutant.configuration], seed) for seed in range(1, PLAYS_OF_MUTANTS + 1))
        assert any(result.broken for result in plays)
    finally:
        board.redis.close()
