"""Draws faults that come together.

When a process does a certain step, for example sends a recovery call, a fault hits it.

Faults at instants that are drawn by themselves hardly ever meet. In 300 of those stories, for example, no replica's
call arrived after its term had ended. So stories have scenes from the lists below, or conjunctions that are drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.simulation import plays
from tests.simulation.faults import FAULTS, workers_of
from tests.simulation.plays import Act
from tests.simulation.story import (
    HOLDER,
    ITSELF,
    OFFERED_TO,
    REAPER,
    SHORTEST_LEASE_S,
    WRITE,
    NewJob,
    Setting,
    Step,
    Story,
)
from tests.simulation.unserved import NEEDED

BY_HOLDERS = (
    "sent recover", "sent recover", "ran recover", "sent move_due", "sent tick", "ran tick", "event recovered",
    "event quarantined", "sent lease_take", "lease taken", "lease offered",
)  # fmt: skip
BY_WORKERS = (
    "sent ack", "sent settle", "ran ack", "ran settle", "sent extend", "ran extend",
    "started", "sent recover", "ran recover", "event quarantined", "ran join_group",
)  # fmt: skip
"""Moments that a fault may wait for."""
OF_ITSELF = ("part", "part", "cut", "slow", "pause", "kill", "lose", "suspend", "power-off")
_HOLDS = {"sent": "part", "ran ": "cut"}
"""The fault that keeps the call of such a moment, or its reply."""
OF_SERVER = (
    "failover", "failover", "loss", "freeze", "restart", "load", "clock", "deny", "deny", "memory", "clients",
    "scripts",
)  # fmt: skip
OF_OPERATORS = (
    "drain", "brake", "visibility", "limit", "policy", "forget", "flush", "destroy-group", "delete-consumer",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cue:
    """One fault of a scene."""

    on: str
    """The moment that it waits for."""
    kind: str
    who: str = ""
    parts: tuple[float, float] | None = None
    """How long it lasts at least and at most, in visibility timeouts; None = as usual for its kind."""
    leases: tuple[float, float] | None = None
    """The same, in leases."""
    value: Any = None
    """None = drawn."""
    later: float = 0.0
    """How long after the scene's beginning it begins to wait, in visibility timeouts."""


SCENES_BEGIN = (0.02, 0.2, 0.38)
"""When the scenes of a story begin at the earliest, in parts of its length."""
LENGTH = 5.0
"""So many visibility timeouts a story with scenes lasts at least, so that its last scene comes to its end."""
_LONG, _SHORT, _SOME = (1.3, 2.5), (0.01, 0.1), (0.2, 0.6)
"""Longer than a worker may be silent, too short to be a gap, and in between: in visibility timeouts."""
_TERM = (1.2, 2.5)
"""Longer than a lease lasts without its holder, in leases."""
_KILLED = Cue("started", "kill", ITSELF, (0.01, 0.03))
_KILLED_LATER = Cue("started", "kill", ITSELF, (0.01, 0.03), later=0.5)
"""There is more to recover when the first job is quarantined, and perhaps released."""
_HELD = Cue("sent recover", "part", ITSELF, leases=_TERM, value="requests")
_HELD_LATER = Cue("sent recover", "part", ITSELF, leases=_TERM, value="requests", later=1.25)

SCENES_OF_HOLDERS = (
    # a stale holder after a failover, a released quarantined job, and both
    (_KILLED, _HELD),
    (_KILLED, Cue("", "failover", parts=_SHORT, later=0.5), _HELD),
    (_KILLED, _KILLED_LATER, _HELD_LATER),
    (_KILLED, _KILLED_LATER, Cue("", "failover", parts=_SHORT, later=0.8), _HELD_LATER),
    (_KILLED, _KILLED_LATER, Cue("", "failover", parts=_SHORT, later=1.1), _HELD_LATER),
    (_KILLED, Cue("sent move_due", "part", ITSELF, leases=_TERM, value="requests")),
    (_KILLED, Cue("sent recover", "pause", ITSELF, leases=_TERM)),
    (_KILLED, Cue("sent recover", "kill", ITSELF)),
    (_KILLED, _KILLED_LATER, Cue("event quarantined", "kill", HOLDER)),
    # a term begins
    (Cue("started", "part", ITSELF, _LONG), Cue("fault part", "drain", HOLDER)),
    (Cue("started", "deny", parts=_SOME, value="subscribe"), Cue("fault deny", "drain", HOLDER)),
    (_KILLED, Cue("event quarantined", "clock", value=-90.0), Cue("fault clock", "drain", HOLDER)),
    (_KILLED, _KILLED_LATER, Cue("event quarantined", "drain", HOLDER)),
    # in the middle of a hand-over: the receiver is not there, or comes late
    (Cue("started", "drain", HOLDER), Cue("lease offered", "pause", ITSELF, leases=_TERM)),
    (Cue("started", "drain", HOLDER), Cue("lease offered", "kill", ITSELF)),
    (Cue("started", "drain", HOLDER), Cue("lease offered", "kill", OFFERED_TO)),
    (_KILLED, Cue("started", "drain", HOLDER), Cue("lease offered", "pause", OFFERED_TO, leases=_TERM)),
    (_KILLED, Cue("started", "drain", HOLDER), Cue("lease offered", "failover", parts=_SHORT)),
    (Cue("sent lease_take", "part", ITSELF, leases=_TERM, value="replies"),),
    (Cue("started", "stop", HOLDER), Cue("lease taken", "stop", ITSELF)),
    (_KILLED, Cue("", "freeze", parts=_SOME, later=0.5)),
    (_KILLED, Cue("", "pause", HOLDER, leases=_TERM, later=0.5)),
    # servers and operators that reject
    (_KILLED, Cue("sent recover", "deny", parts=_SOME, value=WRITE)),
    (_KILLED, Cue("sent recover", "deny", parts=_SOME, value="xclaim")),
    (_KILLED, Cue("", "deny", parts=_LONG, value="subscribe", later=0.3)),
    (_KILLED, Cue("sent extend", "deny", parts=_SOME, value=WRITE), Cue("fault deny", "part", HOLDER)),
    (_KILLED, Cue("sent recover", "memory", parts=_SOME)),
    (_KILLED, Cue("sent recover", "brake", parts=_SOME)),
    # settings that change
    (_KILLED, Cue("", "limit", value={"max_deliveries": 1}, later=0.5)),
    (_KILLED, Cue("", "visibility", later=0.5)),
    (_KILLED, Cue("", "policy", later=0.5)),
)
SCENES = (
    (_KILLED, Cue("started", "mode", parts=_SHORT)),
    (_KILLED, Cue("", "loss", parts=_SHORT, later=0.5)),
    (Cue("started", "pause", ITSELF, _LONG),),
    (Cue("started", "part", ITSELF, _LONG),),
    (Cue("started", "delete-consumer"), Cue("ran extend", "delete-consumer")),
    (Cue("started", "clients", parts=_SOME), _KILLED),
    (Cue("sent enqueue", "memory", parts=_SOME),),
    (Cue("sent settle", "kill", ITSELF),),
    (Cue("sent settle", "pause", ITSELF, _LONG),),
    (Cue("sent settle", "part", ITSELF, _LONG, value="requests"),),
    (Cue("sent settle", "deny", parts=_SOME, value=WRITE),),
    (Cue("sent settle", "deny", parts=_SOME, value="xack"),),
    (Cue("sent settle", "memory", parts=_SOME),),
    (Cue("ran settle", "failover", parts=_SHORT), _KILLED),
    (Cue("event dead_lettered", "redrive"),),
    (Cue("sent extend", "kill", ITSELF),),
    (Cue("sent extend", "deny", parts=(0.4, 0.9), value="xclaim"),),
)


def with_conjunctions(story: Story) -> Story:
    """Return ``story`` with some of its jobs longer, and with faults that wait for moments, and for each other."""
    random = Random(f"conjunctions {story.seed}")
    is_staged = story.seed % 4 > 1
    setting = story.setting
    if is_staged or random.random() < 0.7:  # else a job seldom comes close to its limit, and a lease seldom ends
        setting = replace(
            setting,
            max_deliveries=random.choice((2, 2, 3)),
            lease_s=max(SHORTEST_LEASE_S, setting.visibility_s / 6),
            replicas=max(2, setting.replicas),
            workers=max(2, setting.workers),
        )
    jobs = tuple(_lengthen(random, job, setting) for job in story.jobs)
    if is_staged:
        story = replace(story, length_s=max(story.length_s, LENGTH * setting.visibility_s))
        last = max(jobs, key=lambda job: job.at)  # there is something to redrive
        rejects = (Act(plays.REJECT, 1.0),)
        jobs = tuple(replace(job, play=rejects, timeout=None) if job is last else job for job in jobs)
    drawn = _draw_scenes(random, story, setting) if is_staged else _draw(random, setting, story.length_s)
    steps = [*story.steps[: random.choice((0, 1, 3))], *drawn]
    return replace(story, setting=setting, jobs=jobs, steps=tuple(sorted(steps, key=lambda step: step.at)))


def _draw_scenes(random: Random, story: Story, setting: Setting) -> Iterator[Step]:
    """Draw some scenes, one after the other in turn, so that each comes equally often."""
    scenes = (*SCENES_OF_HOLDERS, *SCENES) if setting.recovery == REAPER else SCENES
    turn = story.seed // 4 * 2 + story.seed % 2
    for number, begins in enumerate(SCENES_BEGIN):
        at = random.uniform(begins, begins + 0.1) * story.length_s
        for cue in scenes[(turn * len(SCENES_BEGIN) + number) % len(scenes)]:
            if FAULTS[cue.kind].may(setting):
                yield _one_of_scene(random, setting, at, cue)


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
        by_holder = setting.recovery == REAPER and random.random() < 0.5
        on = random.choice(BY_HOLDERS if by_holder else BY_WORKERS)
        at = round(random.uniform(0, 0.6) * length_s, 1)
        first = _HOLDS.get(on[:4], "") if random.random() < 0.5 else ""
        first = first or random.choice(OF_ITSELF if random.random() < 0.5 else OF_SERVER)
        yield from _one(random, setting, at, first, ITSELF if first in OF_ITSELF else "", on)
        for then in random.sample((*OF_ITSELF, *OF_SERVER, *OF_OPERATORS), random.choice((0, 1, 2))):
            whose = random.choice((ITSELF, ITSELF, HOLDER, *workers_of(setting))) if then in OF_ITSELF else ""
            whose = HOLDER if then == "drain" else whose
            yield from _one(random, setting, at, then, whose, f"fault {first}")


def _one(random: Random, setting: Setting, at: float, kind: str, who: str, on: str) -> Iterator[Step]:
    if not FAULTS[kind].may(setting) or (who == HOLDER and setting.recovery != REAPER):
        return
    step = replace(FAULTS[kind].draw(random, setting, at), who=who, on=on)
    if kind in ("part", "pause", "suspend") and random.random() < 0.7:  # long enough for another one to take the lease
        step = replace(step, seconds=round(setting.longest_lease_s * random.uniform(1.0, 2.5), 1))
    if kind == "deny" and random.random() < 0.5:
        step = replace(step, value=random.choice(NEEDED))
    yield step


def _one_of_scene(random: Random, setting: Setting, at: float, cue: Cue) -> Step:
    at = round(at + cue.later * setting.visibility_s, 1)
    step = replace(FAULTS[cue.kind].draw(random, setting, at), who=cue.who, on=cue.on)
    unit_s, parts = (setting.longest_lease_s, cue.leases) if cue.leases else (setting.visibility_s, cue.parts)
    if parts:
        step = replace(step, seconds=round(unit_s * random.uniform(*parts), 1))
    return step if cue.value is None else replace(step, value=cue.value)
