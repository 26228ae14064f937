"""Draws stories by seed."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.simulation import plays
from tests.simulation.conjunctions import with_conjunctions
from tests.simulation.faults import FAULTS
from tests.simulation.long_jobs import with_long_jobs
from tests.simulation.outages import with_outages
from tests.simulation.plays import Act, Play
from tests.simulation.server.versions import capabilities_of
from tests.simulation.story import (
    EMBEDDED,
    IN_PLACE,
    REAPER,
    SHORTEST_LEASE_S,
    VERSIONS,
    NewJob,
    Setting,
    Step,
    Story,
)

OUTAGES, LONG_JOBS, LONG_JOBS_EMBEDDED = 10_000_000, 20_000_000, 30_000_000
"""The first seeds of families of stories: with long outages, and with long jobs while the server fails."""


def draw(seed: int) -> Story:
    """Draw the story of a seed, of the family that the seed belongs to."""
    story = _draw_story(seed)
    if seed >= LONG_JOBS_EMBEDDED:
        return with_long_jobs(story, EMBEDDED)
    if seed >= LONG_JOBS:
        return with_long_jobs(story, REAPER)
    if seed >= OUTAGES:
        return with_outages(story)
    return with_conjunctions(story) if seed % 4 else story


def _draw_story(seed: int) -> Story:
    random = Random(f"story {seed}")
    setting = _draw_setting(random)
    length_s = round(setting.visibility_s * random.uniform(3, 8), 1)
    # Drawn apart: the stories of other seeds stay what they were.
    if capabilities_of(setting.version).has_claim and Random(f"in place {seed}").choice((False, True)):
        setting = replace(setting, redelivery=IN_PLACE)
    if setting.version == VERSIONS[-1] and Random(f"limited {seed}").choice((False, True)):
        setting = replace(setting, version="8.10")
    jobs = tuple(_draw_jobs(random, setting, length_s))
    steps = tuple(sorted(_draw_steps(random, setting, length_s), key=lambda step: step.at))
    return Story(seed, setting, jobs, steps, length_s)


def _draw_setting(random: Random) -> Setting:
    recovery = random.choice((REAPER, REAPER, REAPER, EMBEDDED))
    replicas = random.choice((1, 2, 2, 3, 4))
    visibility_s = random.choice((60.0, 120.0, 300.0, 600.0))
    return Setting(
        version=random.choice(VERSIONS),
        recovery=recovery,
        redelivery=random.choice(("stream", "retry-stream")),
        visibility_s=visibility_s,
        max_deliveries=random.choice((1, 2, 3, 3, 3, 5)),
        # In proportion: a short lease beside a long timeout is extended a hundred times before anything is overdue.
        lease_s=max(SHORTEST_LEASE_S, visibility_s * random.choice((1 / 10, 1 / 6, 1 / 4))),
        workers=random.choice((1, 2, 2, 3)),
        bare_workers=random.choice((0, 0, 0, 1)) if recovery == REAPER else 0,
        replicas=replicas,
        concurrency=random.choice((1, 2, 4, 8)),
        named=random.random() < 0.3,
        delete_settled=random.random() < 0.2,
        own_timeout=random.random() < 0.5,
    )


def _draw_jobs(random: Random, setting: Setting, length_s: float) -> Iterator[NewJob]:
    at = 0.0
    for number in range(random.choice((3, 6, 12, 24))):
        if random.random() < 0.7:  # else at the same moment as the one before
            at = round(random.uniform(0, length_s * 0.7), 1)
        play = _draw_play(random, setting)
        limit = round(setting.visibility_s * random.uniform(0.3, 1.5), 1)
        hangs = any(act.verb in (plays.HANG, plays.SWALLOW) for act in play)
        delayed = random.random() < 0.15
        yield NewJob(
            at,
            number,
            play,
            delay=round(random.uniform(0, setting.visibility_s), 1) if delayed else 0.0,
            timeout=limit if hangs else None,
            bare=random.random() < 0.2 and not delayed and not hangs,
        )


def _draw_play(random: Random, setting: Setting) -> Play:
    visibility_s = setting.visibility_s
    if random.random() < 0.7:
        longest = visibility_s * random.choice((0.05, 0.05, 0.5, 2.5))
        return (Act(plays.OK, round(random.uniform(0, longest), 1)),)
    verbs = [verb for verb in plays.VERBS if verb != plays.BLOCK or setting.concurrency]
    acts = [
        Act(random.choice(verbs), round(visibility_s * random.uniform(0, 0.6), 1))
        for _ in range(random.choice((1, 1, 2, 3)))
    ]
    if acts[-1].verb in (plays.RETRY, plays.RETURN_RETRY) or random.random() < 0.5:
        acts.append(Act(plays.OK, round(visibility_s * random.uniform(0, 0.5), 1)))
    return tuple(acts)


def _draw_steps(random: Random, setting: Setting, length_s: float) -> Iterator[Step]:
    kinds = [fault for fault in FAULTS.values() if fault.may(setting)]
    favourites = random.sample(kinds, min(3, len(kinds)))  # the same fault again and again is a story of its own
    for _ in range(random.choice((0, 1, 2, 3, 5, 8, 12))):
        fault = random.choice(favourites if random.random() < 0.6 else kinds)
        yield fault.draw(random, setting, round(random.uniform(0, length_s), 1))
