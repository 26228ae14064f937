"""Stories by seed: the promises hold in all of them. `make soak` plays more."""

import pytest

from tests.simulation.draw import OUTAGES, draw
from tests.simulation.faults import FAULTS
from tests.simulation.judge import lost_and_told
from tests.simulation.play import play
from tests.simulation.plays import Dropped, Ledger, Telling
from tests.simulation.shrink import shrink
from tests.simulation.story import Story
from tests.simulation.telling import tell_failure, tell_story
from workers.protocol.events import EventName, LifecycleEvent

SEEDS = 300
SEEDS_OF_OUTAGES = 50
AT_A_TIME = 25


@pytest.mark.parametrize("first", range(1, SEEDS + 1, AT_A_TIME))
def test_whatever_befalls_them_the_promises_hold(first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        outcome = play(draw(seed))
        assert not outcome.violations, "\n".join(tell_failure(outcome))


@pytest.mark.parametrize("first", range(OUTAGES, OUTAGES + SEEDS_OF_OUTAGES, AT_A_TIME))
def test_nor_does_an_outage_in_which_processes_end_and_start_break_them(first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        outcome = play(draw(seed))
        assert not outcome.violations, "\n".join(tell_failure(outcome))


@pytest.mark.parametrize("seed", [2, 10, 37])
def test_the_same_seed_takes_the_same_steps(seed: int) -> None:
    first, second = play(draw(seed)), play(draw(seed))
    assert (first.digest, first.turns) == (second.digest, second.turns)


def test_stories_are_told_in_sentences_and_every_kind_of_fault_is_drawn() -> None:
    kinds = set()
    for seed in range(400):
        story = draw(seed)
        kinds |= {step.kind for step in story.steps}
        assert all(line.endswith(".") and "{" not in line.partition("told")[0] for line in tell_story(story))
    assert kinds == set(FAULTS)


def test_a_story_that_fails_is_shrunk_to_what_it_needs() -> None:
    story = draw(next(seed for seed in range(1_000) if len(draw(seed).steps) >= 8 and len(draw(seed).jobs) >= 12))
    needed = (story.steps[1], story.steps[6])
    plays = 0

    def fails(candidate: Story) -> bool:
        nonlocal plays
        plays += 1
        return all(step in candidate.steps for step in needed) and story.jobs[5] in candidate.jobs

    shortest = shrink(story, fails)
    assert (shortest.steps, shortest.jobs) == (needed, (story.jobs[5],))
    assert plays < 100


@pytest.mark.parametrize(
    ("tellings", "named", "told"),
    [
        ([], [], []),
        ([Telling(4.0, "group_destroyed")], [], []),
        ([Telling(6.0, "the network is slow")], [], []),
        ([Telling(6.0, "group_destroyed")], [], ["job-001", "job-002"]),
        ([Telling(6.0, "lost_delivery", "w1")], [], ["job-001"]),
        ([Telling(4.0, "lost_delivery", "w1")], [], []),
        ([Telling(6.0, "lost_delivery", "w2")], [], []),
        ([Telling(6.0, "the network is slow", "w1")], [], []),
        ([], ["job-002"], ["job-002"]),
        ([], ["w1"], ["job-001"]),
        ([], ["w2"], []),
    ],
)
def test_what_others_drop_is_no_loss_only_where_somebody_has_told_of_it_since(
    tellings: list[Telling], named: list[str], told: list[str]
) -> None:
    ledger = Ledger(dropped={"job-001": Dropped(5.0, "w1"), "job-002": Dropped(5.0, "")})
    events = [
        LifecycleEvent("1-0", 1, EventName.LOST_DELIVERY, one, {})
        if one.startswith("job")
        else LifecycleEvent("1-0", 1, EventName.LOST_CONSUMER, "", {"consumer": one})
        for one in named
    ]
    assert list(lost_and_told(ledger, tellings, events)) == told
