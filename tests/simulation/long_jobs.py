"""Stories of long jobs in live hands while the server fails: a recovery that comes too early robs a worker here."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.simulation import plays
from tests.simulation.faults import FAULTS
from tests.simulation.plays import Act
from tests.simulation.story import IN_PLACE, NewJob, Setting, Step, Story
from tests.simulation.unserved import NEEDED

KINDS = ("freeze", "restart", "load", "failover", "loss", "clock", "deny")
PERIODS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
"""How long a fault of the server lasts, in visibility timeouts."""
CLOCK_STEPS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.9, 1.5, 5.0, 30.0)
"""By how much its clock is set, in the same unit."""
JOBS = (0.3, 1.0, 2.0, 3.0, 5.0)
"""How long a job runs, in the same unit."""


def with_long_jobs(story: Story, recovery: str) -> Story:
    """Return the drawn ``story`` with long jobs, and with faults of the server; ``recovery``: who recovers."""
    random = Random(f"long jobs {story.seed}")
    drawn = story.setting
    setting = replace(
        drawn,
        recovery=recovery,
        redelivery=random.choice(("stream", "retry-stream")) if drawn.redelivery == IN_PLACE else drawn.redelivery,
        max_deliveries=random.choice((2, 3, 5)),
        bare_workers=0,
    )
    length_s = round(setting.visibility_s * random.uniform(4, 8), 1)
    jobs = tuple(_lengthen(random, job, setting.visibility_s, length_s) for job in story.jobs)
    steps = tuple(sorted(_draw_steps(random, setting, length_s), key=lambda step: step.at))
    return replace(story, setting=setting, jobs=jobs, steps=steps, length_s=length_s)


def _lengthen(random: Random, job: NewJob, visibility_s: float, length_s: float) -> NewJob:
    runs_s = round(visibility_s * random.choice(JOBS) * random.uniform(0.8, 1.2), 1)
    at = round(random.uniform(0, length_s * 0.6), 1)
    return NewJob(at, job.number, (Act(plays.OK, runs_s),))


def _draw_steps(random: Random, setting: Setting, length_s: float) -> Iterator[Step]:
    visibility_s = setting.visibility_s
    for _ in range(random.choice((1, 2, 3, 4, 6))):
        fault = FAULTS[random.choice(KINDS)]
        step = fault.draw(random, setting, round(random.uniform(0.2 * visibility_s, length_s), 1))
        about = random.uniform(0.9, 1.1) * visibility_s
        if step.kind == "clock":
            by_s = random.choice((-1, 1, 1)) * random.choice(CLOCK_STEPS) * about
            yield replace(step, value=round(by_s, 1))
        elif step.kind == "deny":
            yield replace(step, value=random.choice(NEEDED), seconds=round(random.choice(PERIODS) * about, 1))
        else:
            yield replace(step, seconds=round(random.choice(PERIODS) * about, 1))
