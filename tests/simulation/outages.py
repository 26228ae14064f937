"""Draws long outages into a story: the server is away while processes end and start, so that nobody has seen it go."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.simulation.faults import replicas_of, workers_of
from tests.simulation.story import REAPER, SHORTEST_LEASE_S, Setting, Step, Story


def with_outages(story: Story) -> Story:
    """Return ``story`` with an outage or two in addition to the faults in it."""
    random = Random(f"outages {story.seed}")
    setting = story.setting
    if random.random() < 0.4:  # so that others are elected while it lasts
        setting = replace(setting, lease_s=SHORTEST_LEASE_S)
    outages = [step for _ in range(random.choice((1, 1, 2))) for step in _draw_outage(random, setting)]
    steps = sorted([*story.steps, *outages], key=lambda step: step.at)
    return replace(story, setting=setting, steps=tuple(steps))


def _draw_outage(random: Random, setting: Setting) -> Iterator[Step]:
    at = random.uniform(0.3, 2.5) * setting.visibility_s
    away = random.choice((0.3, 0.4, 0.6, 0.9, 1.2, 2.0)) * random.uniform(0.9, 1.1) * setting.visibility_s
    begins, seconds = round(at, 1), round(away, 1)
    replicas, workers = replicas_of(setting), workers_of(setting)
    kind = random.choice(("failover", "failover", "restart", "freeze", "refuse"))
    if kind == "refuse":
        yield from (Step(begins, kind, who, seconds) for who in (*workers, *replicas))
    else:
        yield Step(begins, kind, "", seconds, random.choice((100, 1_000)) if kind == "failover" else None)
    leaves_workers = setting.recovery == REAPER and random.random() < 0.7
    for who in replicas if leaves_workers else (*workers, *replicas):
        if random.random() < 0.8:
            ends = at + random.uniform(-0.3, 1.0) * away
            off = random.choice((random.uniform(-0.5, 0.5), random.uniform(-0.2, 0.1) * away, random.uniform(-2, 3)))
            yield Step(round(ends, 1), "kill", who, round(max(0.5, at + away + off - ends), 3))
