"""``python -m tests.simulation SEED [--verbose]``: play one story, or many, and say what is wrong."""

import argparse
import sys
import time

from tests.simulation.draw import draw
from tests.simulation.faults import FAULTS
from tests.simulation.play import play
from tests.simulation.story import Story


def tell_story(story: Story) -> list[str]:
    """Return a story in plain sentences."""
    lines = [f"Seed {story.seed}. {story.setting.sentence}"]
    lines += [f"{job.at:8.1f} s  {job.sentence}" for job in story.jobs]
    lines += [f"{step.at:8.1f} s  {FAULTS[step.kind].sentence(step)}" for step in story.steps]
    return lines


def main() -> int:
    """Play what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--verbose", action="store_true", help="tell each message and each fault")
    parser.add_argument("--count", type=int, default=1, help="play so many seeds, from SEED on")
    options = parser.parse_args()
    failed, virtual_s, began = 0, 0.0, time.process_time()
    for seed in range(options.seed, options.seed + options.count):
        story = draw(seed)
        if options.count == 1:
            print("\n".join(tell_story(story)))
        outcome = play(story, (lambda at, what: print(f"{at:12.6f} {what}")) if options.verbose else None)
        virtual_s += outcome.virtual_s
        if outcome.violations:
            failed += 1
            print(f"seed {seed} fails:")
            for sentence in outcome.violations:
                print(f"  {sentence}")
        if options.count == 1:
            print(
                f"{outcome.virtual_s:.0f} s, {outcome.turns} turns, {outcome.executions} executions, {outcome.digest}"
            )
    spent_s = time.process_time() - began
    print(f"{options.count} stories, {failed} failed; {virtual_s / 3600:.1f} h in {spent_s:.1f} s of CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
