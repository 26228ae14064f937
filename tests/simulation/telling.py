"""Tells a story, and how one fails, in plain sentences."""

from tests.simulation.draw import draw
from tests.simulation.faults import FAULTS
from tests.simulation.play import Outcome, play
from tests.simulation.shrink import kinds_of, shrink
from tests.simulation.story import Story


def tell_story(story: Story) -> list[str]:
    """Return a story in plain sentences."""
    happens = [(job.at, job.sentence) for job in story.jobs]
    happens += [(step.at, FAULTS[step.kind].sentence(step)) for step in story.steps]
    happens += [(story.length_s, "Nothing befalls anybody any more.")]
    lines = [f"{at:10.1f} s  {sentence}" for at, sentence in sorted(happens, key=lambda one: one[0])]
    return [f"Seed {story.seed}. {story.setting.sentence}", *lines]


def replay_command(story: Story) -> str:
    """Return the command that plays exactly this story."""
    whole = draw(story.seed)
    command = f"python -m tests.simulation {story.seed} --verbose"
    for name, some, everything in (("steps", story.steps, whole.steps), ("jobs", story.jobs, whole.jobs)):
        if some != everything:
            command += f" --{name} {','.join(str(everything.index(one)) for one in some) or 'none'}"
    return command


def tell_failure(outcome: Outcome) -> list[str]:
    """Shrink a story that failed, and print the rest of it."""
    kinds = kinds_of(outcome.violations)
    story = shrink(outcome.story, lambda one: bool(kinds & kinds_of(play(one).violations)))
    return [
        f"seed {story.seed} fails:",
        *(f"  {sentence}" for sentence in outcome.violations),
        "the shortest story found that still fails:",
        *(f"  {line}" for line in tell_story(story)),
        *(f"  {sentence}" for sentence in play(story).violations),
        f"replay it by: {replay_command(story)}",
    ]
