"""Play a story, or many, and print violations.

``python -m tests.simulation 17 --verbose`` plays the story of seed 17 step by step: every fault and every message.
``python -m tests.simulation 1 --count 20000`` plays seeds from 1 on; what fails is shrunk to the faults it needs.
``python -m tests.simulation --run 0`` plays the stories of `make test`, and fails if they miss a situation.
``--run 1`` plays 300 stories of other seeds.
``--choose`` plays runs 1 to 3, and chooses the stories of `make test` from them anew.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from tests.simulation.draw import draw
from tests.simulation.play import Outcome, play, play_seed
from tests.simulation.runs import CHOSEN, choose, seeds_of
from tests.simulation.situations import never_reached
from tests.simulation.story import Story
from tests.simulation.telling import tell_failure, tell_story

TELL_EVERY = 1_000
"""Stories between two lines that say how far it is."""
STORIES_OF_A_POOL = 2_000
RUNS_TO_CHOOSE_FROM = (1, 2, 3)


def _chosen(story: Story, steps: str | None, jobs: str | None) -> Story:
    """Leave of a story what the command line names, as `replay_command` writes it."""
    if steps is not None:
        story = replace(story, steps=tuple(story.steps[number] for number in _numbers(steps)))
    if jobs is not None:
        story = replace(story, jobs=tuple(story.jobs[number] for number in _numbers(jobs)))
    return story


def _numbers(text: str) -> list[int]:
    return [] if text == "none" else [int(number) for number in text.split(",")]


def _play_one(story: Story, *, verbose: bool) -> int:
    def tell(at: float, what: str) -> None:
        print(f"{at:14.6f} {what}")

    print(*tell_story(story), sep="\n")
    outcome = play(story, tell if verbose else None)
    print(f"{outcome.virtual_s:.0f} s, {outcome.turns} turns, {outcome.executions} executions, {outcome.digest}")
    print(*outcome.violations or ("everything holds",), sep="\n")
    return 1 if outcome.violations else 0


def _name_failure(outcome: Outcome) -> list[str]:
    return [f"seed {outcome.story.seed} fails:", *outcome.violations]


def _until_failure(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    for outcome in outcomes:
        yield outcome
        if outcome.violations:
            return


def _play_many(outcomes: Iterable[Outcome], tell: Callable[[Outcome], list[str]], *, is_run: bool) -> int:
    played, failed, virtual_s, began = 0, 0, 0.0, time.process_time()
    reached: list[frozenset[str]] = []
    for outcome in outcomes:
        played += 1
        virtual_s += outcome.virtual_s
        reached.append(outcome.reached)
        if outcome.violations:
            failed += 1
            print(*tell(outcome), sep="\n", flush=True)
        if played % TELL_EVERY == 0:
            print(f"{played} stories played, up to seed {outcome.story.seed}; {failed} failed", flush=True)
    spent_s = time.process_time() - began
    print(f"{played} stories, {failed} failed; {virtual_s / 3600:.1f} virtual hours, {spent_s:.1f} s of CPU here")
    missed = never_reached(reached) if is_run and not failed else []
    print(*(f"never reached: {name}" for name in missed), sep="\n", end="\n" if missed else "")
    return 1 if failed or missed else 0


def _choose(processes: int) -> int:
    """Write the seeds of run 0. Return 1 where a story fails, or no story reaches a situation."""
    seeds = [seed for run in RUNS_TO_CHOOSE_FROM for seed in seeds_of(run)]
    reached: dict[int, frozenset[str]] = {}
    turns: dict[int, int] = {}

    def note(outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        for outcome in outcomes:
            reached[outcome.story.seed], turns[outcome.story.seed] = outcome.reached, outcome.turns
            yield outcome

    result = _play_many(note(_play_in(processes, seeds)), _name_failure, is_run=True)
    if result == 0:
        chosen = choose(reached, turns)
        CHOSEN.write_text(
            "\n".join(" ".join(map(str, chosen[at : at + 10])) for at in range(0, len(chosen), 10)) + "\n"
        )
    return result


def _play_in(processes: int, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Play ``seeds`` in so many processes, which are new ones now and then: what they have loaded and kept grows.

    (`ProcessPoolExecutor` would see to that by itself; but on 3.11 it stands still once all have had their tasks.)
    """
    for first in range(0, len(seeds), STORIES_OF_A_POOL):
        with _pool(processes) as pool:
            yield from pool.map(play_seed, seeds[first : first + STORIES_OF_A_POOL], chunksize=10)


def _tell_elsewhere(outcome: Outcome) -> list[str]:
    """Tell in a process of its own: one that plays has another ID meanwhile, and loses those that it waits for."""
    with _pool(1) as pool:
        return pool.submit(tell_failure, outcome).result()


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"))


def main() -> int:
    """Play what is asked for; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--run", type=int, help="play the stories of this run instead; 0 = those of make test")
    parser.add_argument("--choose", action="store_true", help="choose the stories of make test anew")
    parser.add_argument("--verbose", action="store_true", help="tell each fault and each message")
    parser.add_argument("--steps", help="only these of the story's faults: numbers, or none")
    parser.add_argument("--jobs", help="only these of the story's jobs: numbers, or none")
    parser.add_argument("--count", type=int, default=1, help="play so many seeds, from SEED on")
    parser.add_argument("--processes", type=int, default=1, help="in so many processes")
    parser.add_argument("--short", action="store_true", help="shrink nothing")
    parser.add_argument(
        "--first-failure", action="store_true", help="end with the first story that fails; shrink nothing"
    )
    options = parser.parse_args()
    if options.choose:
        return _choose(options.processes)
    is_run = options.run is not None
    if is_run == (options.seed is not None):
        parser.error("give either a seed or --run")
    if options.count == 1 and not is_run:
        return _play_one(_chosen(draw(options.seed), options.steps, options.jobs), verbose=options.verbose)
    seeds = seeds_of(options.run) if is_run else range(options.seed, options.seed + options.count)
    if options.first_failure:
        return _play_many(_until_failure(map(play_seed, seeds)), _name_failure, is_run=is_run)
    if options.processes == 1:
        told = _name_failure if options.short else tell_failure
        return _play_many(map(play_seed, seeds), told, is_run=is_run)
    told = _name_failure if options.short else _tell_elsewhere
    return _play_many(_play_in(options.processes, seeds), told, is_run=is_run)


if __name__ == "__main__":
    sys.exit(main())
