"""Stories by seed: the promises hold in all of them. `make soak` plays more."""

import json
from pathlib import Path

import pytest

from tests.simulation.draw import LONG_JOBS, OUTAGES, draw
from tests.simulation.faults import FAULTS
from tests.simulation.judge import lost_and_told
from tests.simulation.play import play
from tests.simulation.plays import Dropped, Ledger, Telling
from tests.simulation.runs import CHOSEN_OF, STORIES, STORIES_OF, choose, family_of, seeds_of
from tests.simulation.shrink import shrink
from tests.simulation.situations import SITUATIONS, never_reached
from tests.simulation.story import Story
from tests.simulation.telling import tell_failure, tell_story
from workers.protocol.events import EventName, LifecycleEvent

CHOSEN = seeds_of(0)
AT_A_TIME = 10


@pytest.fixture
def notes(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "situations"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("first", range(0, len(CHOSEN), AT_A_TIME))
def test_the_promises_hold_in_a_run_that_reaches_every_situation(first: int, notes: Path) -> None:
    """The part of the run that ends last checks the situations that all parts have reached."""
    reached: set[str] = set()
    for seed in CHOSEN[first : first + AT_A_TIME]:
        outcome = play(draw(seed))
        assert not outcome.violations, "\n".join(tell_failure(outcome))
        reached |= outcome.reached
    note = notes / f"{first}.tmp"
    note.write_text(json.dumps(sorted(reached)))
    note.rename(note.with_suffix(".json"))  # no other process ever reads half of it
    parts = list(notes.glob("*.json"))
    if len(parts) == len(CHOSEN) // AT_A_TIME:
        missed = never_reached(json.loads(part.read_text()) for part in parts)
        assert missed == [], "choose stories anew: python -m tests.simulation --choose"


def test_a_run_names_the_situations_that_it_has_never_reached() -> None:
    first, second, *others = (situation.name for situation in SITUATIONS)
    assert never_reached([others, [second]]) == [first]
    assert len({first, second, *others}) == len(SITUATIONS) >= 60


def test_runs_share_no_story_and_have_some_of_each_family() -> None:
    runs = [seeds_of(run) for run in (1, 2, 3)]
    assert len({seed for run in runs for seed in run}) == 3 * STORIES
    for seeds, counts in [*((run, STORIES_OF) for run in runs), (CHOSEN, CHOSEN_OF)]:
        families = [family_of(seed) for seed in seeds]
        assert {first: families.count(first) for first in counts} == counts
        assert set(families[:40]) == set(counts)


def test_stories_are_chosen_that_reach_what_few_of_them_reach() -> None:
    reached = {first + number: {"usual"} for first in CHOSEN_OF for number in range(200)}
    rare = {150: {"rare"}, 151: {"usual", "rare"}, OUTAGES + 120: {"other"}}
    chosen = choose(reached | rare, dict.fromkeys(reached, 1_000))
    assert rare.keys() <= set(chosen)
    assert len(set(chosen)) == sum(CHOSEN_OF.values())


@pytest.mark.parametrize("seed", [10, 37])
def test_the_same_seed_takes_the_same_steps(seed: int) -> None:
    first, second = play(draw(seed)), play(draw(seed))
    assert (first.digest, first.turns) == (second.digest, second.turns)


def test_stories_are_told_in_sentences_and_every_kind_of_fault_is_drawn() -> None:
    kinds = set()
    for seed in (*range(400), *range(LONG_JOBS, LONG_JOBS + 40)):
        story = draw(seed)
        kinds |= {step.kind for step in story.steps}
        assert all(line.endswith(".") and "{" not in line.partition("restart with")[0] for line in tell_story(story))
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
