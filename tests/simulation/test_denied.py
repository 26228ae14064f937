"""Rights that are withdrawn from everybody for longer than the visibility timeout: nobody is to blame.

Found in the neighbourhood of seed 3722, given back in place.
"""

from dataclasses import replace

import pytest

from tests.simulation.play import play
from tests.simulation.plays import Act
from tests.simulation.story import EMBEDDED, IN_PLACE, REAPER, WRITE, NewJob, Setting, Step, Story
from tests.support.tiers import in_matrix

SEEDS = (589872, *(in_matrix(seed) for seed in range(589873, 589872 + 5)))
"""Without a wait after the denial, some of these go wrong in each setting."""
LED = Setting(version="8.4", visibility_s=120.0, max_deliveries=1, lease_s=20.0, replicas=1, concurrency=1)
STORY = Story(
    seed=0,
    setting=LED,
    jobs=(
        NewJob(0.0, 0, (Act("retry-counted", 70.2),)),
        NewJob(19.5, 5, (Act("ok", 51.5),)),
        NewJob(95.9, 3, (Act("ok", 0.6),), bare=True),
    ),
    steps=(Step(85.0, "deny", seconds=183.2, value="evalsha"),),
    length_s=454.4,
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "setting",
    [LED, replace(LED, recovery=EMBEDDED)],
    ids=[REAPER, EMBEDDED],
)
def test_nobody_is_given_up_as_rights_are_given_back(setting: Setting, seed: int) -> None:
    assert play(replace(STORY, seed=seed, setting=setting)).violations == ()


LONG_JOBS = tuple(NewJob(10.0 + i * 7, i % 3, (Act("ok", 160.0 + i * 11),)) for i in range(5))
SIDE_BY_SIDE = replace(LED, concurrency=4)
BY_WORKERS = replace(SIDE_BY_SIDE, recovery=EMBEDDED, workers=2, bare_workers=0)


@pytest.mark.parametrize("seconds", [118.0, 125.0, 183.2])
@pytest.mark.parametrize("seed", [0, in_matrix(1), in_matrix(2)])
@pytest.mark.parametrize(
    "setting",
    [
        SIDE_BY_SIDE,
        BY_WORKERS,
        replace(BY_WORKERS, version="8.6", redelivery=IN_PLACE),
    ],
    ids=[REAPER, EMBEDDED, IN_PLACE],
)
def test_nobody_is_given_up_as_writes_are_taken_again(setting: Setting, seed: int, seconds: float) -> None:
    """A server that lacks replicas, or cannot write its disk, is there, and answers who reads."""
    step = Step(60.0, "deny", seconds=seconds, value=WRITE)
    story = replace(STORY, seed=seed, setting=setting, jobs=LONG_JOBS, steps=(step,), length_s=600.0)
    assert play(story).violations == ()


def test_nobody_is_given_up_as_the_right_to_look_is_given_back() -> None:
    """Without other requests meanwhile, only the scan finds the missing permission (seed 6011275, changed settings)."""
    setting = Setting(
        version="6.2", redelivery="retry-stream", visibility_s=600.0, max_deliveries=1, lease_s=600.0, workers=2,
        bare_workers=0, replicas=3, concurrency=4, delete_settled=True,
    )  # fmt: skip
    jobs = (
        NewJob(533.9, 5, (Act("ok", 173.7),)),
        NewJob(848.3, 6, (Act("ok", 1410.9),)),
        NewJob(2201.7, 7, (Act("ok", 19.2),), bare=True),
        NewJob(2201.7, 8, (Act("ok", 724.6),)),
        NewJob(411.5, 11, (Act("ok", 705.8),)),
    )
    steps = (
        Step(766.2, "memory", seconds=571.1),
        Step(1024.9, "deny", seconds=144.1, value="evalsha"),
        Step(1625.0, "clock", value=3600.0),
        Step(1625.9, "visibility", value={"visibility_timeout": 150.0}),
        Step(2639.3, "stop", "worker-2", 209.5),
        Step(3048.8, "deny", seconds=1070.4, value="xpending"),
    )
    story = Story(seed=6011275, setting=setting, jobs=jobs, steps=steps, length_s=3393.6)
    assert play(story).violations == ()


def test_a_retry_in_place_that_nobody_may_journal_counts_as_little_as_any_other() -> None:
    """Seed 700006: how often a job may be started is read from the journal, where the journal is whole."""
    setting = Setting(
        version="8.6", recovery="embedded", redelivery="in-place", visibility_s=120.0, max_deliveries=1, lease_s=20.0,
        workers=2, bare_workers=0, concurrency=1, own_timeout=True,
    )  # fmt: skip
    job = NewJob(118.8, 2, (Act("retry", 62.9), Act("ok", 13.6)), delay=117.0)
    denied = Story(
        seed=700006, setting=setting, jobs=(job,), steps=(Step(272.9, "deny", seconds=88.9, value="xadd"),),
        length_s=669.0,
    )  # fmt: skip
    for story in (denied, replace(denied, steps=())):
        outcome = play(story)
        assert (outcome.violations, outcome.executions) == ((), 2)


def test_workers_that_do_not_start_without_a_right_are_there_again_once_it_is_given_back() -> None:
    setting = replace(LED, recovery=EMBEDDED, redelivery=IN_PLACE, max_deliveries=3)
    steps = (
        Step(85.0, "deny", seconds=100.0, value="xreadgroup"),
        Step(90.0, "kill", "worker-1", seconds=1.0),
        Step(90.0, "kill", "worker-2", seconds=1.0),
    )
    ended: list[str] = []
    outcome = play(
        replace(STORY, setting=setting, steps=steps),
        lambda _, what: ended.append(what) if "the permission for it" in what else None,
    )
    assert outcome.violations == ()
    assert ended != []
