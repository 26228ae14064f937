"""Draws faults that come together: when one thing happens, such as a recovery that is sent, another one befalls somebody.

Faults at instants that are drawn by themselves hardly ever meet: a call of a leader whose term is over was seen in none of
300 such stories.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.simulation import plays
from tests.simulation.faults import FAULTS, workers_of
from tests.simulation.plays import Act
from tests.simulation.story import ITSELF, LEADER, REAPER, SHORTEST_LEASE_S, NewJob, Setting, Step, Story
from tests.simulation.unserved import NEEDED

BY_LEADERS = (
    "sent recover_entries", "sent recover_entries", "ran recover_entries", "sent release_suspects", "ran release_suspects",
    "event recovered", "event suspected", "fence",
)  # fmt: skip
BY_WORKERS = (
    "sent settle", "sent settle", "ran settle", "ran settle", "sent extend_visibility", "ran extend_visibility", "started",
    "sent autoclaim", "ran autoclaim", "event suspected", "ran join_group",
)  # fmt: skip
"""Moments that a fault may wait for."""
OF_ITSELF = ("part", "part", "cut", "slow", "pause", "kill", "lose", "suspend", "power-off")
_HOLDS = {"sent": "part", "ran ": "cut"}
"""What keeps the call of such a moment, or its reply."""
OF_SERVER = (
    "failover",
    "failover",
    "loss",
    "freeze",
    "restart",
    "load",
    "clock",
    "deny",
    "deny",
    "memory",
    "clients",
    "scripts",
)
OF_OPERATORS = (
    "step-down",
    "brake",
    "visibility",
    "limit",
    "policy",
    "forget",
    "flush",
    "destroy-group",
    "delete-consumer",
)


def with_conjunctions(story: Story) -> Story:
    """Return ``story`` with some of its jobs longer, and with faults that wait for moments, and for each other."""
    random = Random(f"conjunctions {story.seed}")
    setting = story.setting
    if random.random() < 0.7:  # else a job hardly ever comes close to its limit, and a lease hardly ever ends
        setting = replace(
            setting,
            max_deliveries=random.choice((2, 2, 3)),
            lease_s=max(SHORTEST_LEASE_S, setting.visibility_s / 6),
            replicas=max(2, setting.replicas),
            election=True,
        )
    jobs = tuple(_lengthen(random, job, setting) for job in story.jobs)
    steps = [*story.steps[: random.choice((0, 1, 3))], *_draw(random, setting, story.length_s)]
    return replace(story, setting=setting, jobs=jobs, steps=tuple(sorted(steps, key=lambda step: step.at)))


def _lengthen(random: Random, job: NewJob, setting: Setting) -> NewJob:
    if random.random() < 0.5:
        return job
    runs = Act(plays.OK, round(setting.visibility_s * random.choice((0.3, 1.0, 2.0)), 1))
    kills = Act(plays.KILL, round(setting.visibility_s * random.uniform(0.01, 0.2), 1))
    return replace(job, play=(kills, runs) if random.random() < 0.3 else (runs,), timeout=None)


def _draw(random: Random, setting: Setting, length_s: float) -> Iterator[Step]:
    for who in random.sample(workers_of(setting), random.randint(1, setting.workers)):  # so that something is recovered
        at = round(random.uniform(0.1, 0.5) * length_s, 1)
        yield replace(FAULTS["kill"].draw(random, setting, at), who=who)
    for _ in range(random.choice((2, 3, 4))):
        by_leader = setting.recovery == REAPER and random.random() < 0.5
        on = random.choice(BY_LEADERS if by_leader else BY_WORKERS)
        at = round(random.uniform(0, 0.6) * length_s, 1)
        first = _HOLDS.get(on[:4], "") if random.random() < 0.5 else ""
        first = first or random.choice(OF_ITSELF if random.random() < 0.5 else OF_SERVER)
        yield from _one(random, setting, at, first, ITSELF if first in OF_ITSELF else "", on)
        for then in random.sample((*OF_ITSELF, *OF_SERVER, *OF_OPERATORS), random.choice((0, 1, 2))):
            whose = random.choice((ITSELF, ITSELF, LEADER, *workers_of(setting))) if then in OF_ITSELF else ""
            yield from _one(random, setting, at, then, whose, f"fault {first}")


def _one(random: Random, setting: Setting, at: float, kind: str, who: str, on: str) -> Iterator[Step]:
    if not FAULTS[kind].may(setting) or (who == LEADER and setting.recovery != REAPER):
        return
    step = replace(FAULTS[kind].draw(random, setting, at), who=who, on=on)
    if kind in ("part", "pause", "suspend") and random.random() < 0.7:  # long enough for another one to lead
        step = replace(step, seconds=round(setting.lease_s * random.uniform(1.0, 2.5), 1))
    if kind == "deny" and random.random() < 0.5:
        step = replace(step, value=random.choice(NEEDED))
    yield step
