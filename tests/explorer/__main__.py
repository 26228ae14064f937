"""Play many seeds: ``python -m tests.explorer --count 20000``; ``--mutant NAME`` to see that one dies."""

import argparse
import sys
from collections import Counter
from time import monotonic

from tests.explorer.board import Board
from tests.explorer.mutants import MUTANTS
from tests.explorer.plays import CONFIGURATIONS, play
from tests.support.servers import binaries_at_hand, default_binary, lane_of, started_server

MOST_FAILURES = 5


def main() -> int:
    """Play; return 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000, help="plays of each configuration")
    parser.add_argument("--only", choices=sorted(CONFIGURATIONS), help="this configuration alone")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="play scripts with this rule taken out")
    parser.add_argument("--server", help="the server to play on, such as 7.0.15")
    parser.add_argument("--log", action="store_true", help="print what happened in a play that failed")
    asked = parser.parse_args()
    lanes = {lane_of(binary): binary for binary in binaries_at_hand()}
    binary = lanes[asked.server] if asked.server else default_binary()
    failures = 0
    with started_server(binary) as server:
        for name in [asked.only] if asked.only else CONFIGURATIONS:
            failures += play_many(server.port, name, asked)
    return 1 if failures else 0


def play_many(port: int, name: str, asked: argparse.Namespace) -> int:
    """Play one configuration; return how many plays failed."""
    board = Board(port, MUTANTS[asked.mutant].change if asked.mutant else None)
    counts: Counter[str] = Counter()
    failures, began, played = 0, monotonic(), 0
    for seed in range(asked.first, asked.first + asked.count):
        result = play(board, CONFIGURATIONS[name], seed)
        counts.update(result.counts)
        played += 1
        if result.broken:
            failures += 1
            print(f"{name}: seed {seed}: {result.broken}", *(result.log if asked.log else ()), sep="\n  ")
            if failures == MOST_FAILURES:
                break
    board.redis.close()
    seconds = monotonic() - began
    print(f"{name}: {played} plays, {failures} failed, {seconds:.0f} s; {dict(sorted(counts.items()))}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
