"""Stories of long jobs in live hands while the server fails: a recovery that comes too early robs a worker here."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.simulation import plays
from tests.simulation.faults import FAULTS, workers_of
from tests.simulation.plays import Act
from tests.simulation.story import IN_PLACE, REAPER, SHORTEST_LEASE_S, NewJob, Setting, Step, Story
from tests.simulation.unserved import NEEDED

KINDS = ("freeze", "restart", "load", "failover", "loss", "clock", "clock", "deny", "deny", "deny")
DENIED = (*NEEDED, "xclaim", "xclaim", "xclaim", "xpending", "xrange")
"""Scripts that note a beat run most of these anyway. The last ones they have to probe."""
PERIODS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
"""How long a fault of the server lasts, in visibility timeouts."""
DENIALS = (0.3, 0.5, 0.9, 1.2, 1.2, 1.5, 2.5)
"""How long a command is denied, in the same unit."""
STEPS_AHEAD = (0.1, 0.2, 0.3, 0.4, 0.6, 0.9, 1.5, 5.0, 30.0)
STEPS_BACK = (0.2, 0.6, 5.0, 30.0, 30.0)
"""By how much its clock is set, in the same unit. A short step back changes little: it makes nothing overdue."""
JOBS = (0.3, 1.0, 2.0, 3.0, 5.0)
"""How long a job runs, in the same unit."""
LEAST_SLOTS = 4
"""Slots of a worker, so that all jobs together take no longer than a story may last after its last fault."""
FORMER_S = 30.0
"""A lowered timeout does not count for about so long."""

SET_BACK_EVERY = 4
"""One in so many stories ends with a clock that is set back long after the timeout was lowered."""


def with_long_jobs(story: Story, recovery: str) -> Story:
    """Return the drawn ``story`` with long jobs, and with faults of the server; ``recovery``: who recovers."""
    random = Random(f"long jobs {story.seed}")
    drawn = story.setting
    setting = replace(
        drawn,
        recovery=recovery,
        redelivery=random.choice(("stream", "retry-stream")) if drawn.redelivery == IN_PLACE else drawn.redelivery,
        max_deliveries=random.choice((2, 3, 5)),
        lease_s=max(SHORTEST_LEASE_S, drawn.visibility_s / 6),  # a long one would hide what comes late
        concurrency=max(LEAST_SLOTS, drawn.concurrency),
        bare_workers=0,
    )
    length_s = round(setting.visibility_s * random.uniform(4, 8), 1)
    jobs = tuple(_lengthen(random, job, setting.visibility_s, length_s) for job in story.jobs)
    steps = tuple(sorted(_draw_steps(random, setting, length_s), key=lambda step: step.at))
    if recovery == REAPER and story.seed % SET_BACK_EVERY == 0:
        last = tuple(_set_back_long_after(random, setting, length_s))
        steps = (*(step for step in steps if step.at + step.seconds < last[0].at), *last)
    return replace(story, setting=setting, jobs=jobs, steps=steps, length_s=length_s)


def _lengthen(random: Random, job: NewJob, visibility_s: float, length_s: float) -> NewJob:
    runs_s = round(visibility_s * random.choice(JOBS) * random.uniform(0.8, 1.2), 1)
    at = round(random.uniform(0, length_s * 0.6), 1)
    return NewJob(at, job.number, (Act(plays.OK, runs_s),))


def _draw_steps(random: Random, setting: Setting, length_s: float) -> Iterator[Step]:
    visibility_s = setting.visibility_s
    for _ in range(random.choice((1, 2, 3, 4, 6))):
        step = _draw_fault(random, setting, random.uniform(0.2 * visibility_s, length_s))
        yield step
        ends_at, is_set_back = step.at + step.seconds, step.kind == "clock" and step.value < 0
        if random.random() < 0.3:  # so that there is something to recover when the fault ends
            yield _kill(random, setting, step.at - random.uniform(0, 1) * visibility_s)
        if is_set_back and random.random() < 0.6:  # the same, with deliveries that are as old as the new time
            yield _kill(random, setting, step.at + random.uniform(0.05, 0.5) * visibility_s)
        if random.random() < 0.4:  # a live worker is heard of again later than the others
            cut_s = step.seconds + random.uniform(0.3, 0.7) * visibility_s
            cut = FAULTS["part"].draw(random, setting, round(step.at, 1))
            yield replace(cut, who=random.choice(workers_of(setting)), seconds=round(cut_s, 1), value="both")
        if setting.recovery == REAPER and random.random() < 0.3:  # workers have not read it when the fault ends
            before_s = random.uniform(FORMER_S, 0.5 * visibility_s) if is_set_back else random.uniform(0, FORMER_S)
            lower = {"visibility_timeout": visibility_s * random.choice((0.25, 0.5))}
            lowered = Step(round(max(0.0, ends_at - before_s), 1), "visibility", value=lower)
            yield lowered
            cut = FAULTS["part"].draw(random, setting, lowered.at)  # and one of them is silent for longer than it says
            cut_s = round(random.uniform(0.3, 0.7) * visibility_s, 1)
            yield replace(cut, who=random.choice(workers_of(setting)), seconds=cut_s, value="both")
        if step.kind == "deny" and random.random() < 0.3:
            yield Step(round(step.at + random.uniform(0.1, 0.9) * step.seconds, 1), "settings")


def _set_back_long_after(random: Random, setting: Setting, length_s: float) -> Iterator[Step]:
    """Draw an end in which a former timeout that is long over would come back, and with it a second wait."""
    set_back = round(max(0.7 * length_s, FORMER_S + 1.5 * setting.visibility_s), 1)
    lowered = set_back - FORMER_S - random.uniform(1.0, 1.4) * setting.visibility_s
    lower = {"visibility_timeout": setting.visibility_s * random.choice((0.25, 0.5))}
    yield Step(round(lowered, 1), "visibility", value=lower)
    yield _kill(random, setting, set_back - random.uniform(1.1, 5.0))
    by_s = round(-random.uniform(3, 30) * setting.visibility_s, 1)
    yield replace(FAULTS["clock"].draw(random, setting, set_back), value=by_s)


def _kill(random: Random, setting: Setting, at: float) -> Step:
    kill = FAULTS["kill"].draw(random, setting, round(max(0.0, at), 1))
    return replace(kill, who=random.choice(workers_of(setting)), seconds=1.0)


def _draw_fault(random: Random, setting: Setting, at: float) -> Step:
    step = FAULTS[random.choice(KINDS)].draw(random, setting, round(at, 1))
    about = random.uniform(0.9, 1.1) * setting.visibility_s
    if step.kind == "clock":
        by = -random.choice(STEPS_BACK) if random.random() < 0.4 else random.choice(STEPS_AHEAD)
        return replace(step, value=round(by * about, 1))
    if step.kind == "deny":
        return replace(step, value=random.choice(DENIED), seconds=round(random.choice(DENIALS) * about, 1))
    return replace(step, seconds=round(random.choice(PERIODS) * about, 1))
