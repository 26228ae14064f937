"""Jobs next to a killer are asked for, unless the two look alike (decisions 6 and 7)."""

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.cast import OurWorker
from tests.simulation.conftest import Make
from tests.simulation.places import KEYS
from tests.simulation.story import Setting, Step, Story

LIMIT, VISIBILITY_S = 3, 60.0


def held(job: str, deliveries: int, started: float = -inf) -> Any:
    """Return a delivery in the hands of a worker, as far as anybody asks it."""
    return SimpleNamespace(
        started=started,
        raw_entry_id=job.encode() + b"-0",
        id=job,
        generation=0,
        deliveries=deliveries,
        times_delivered=1,
    )


@pytest.mark.parametrize(
    ("fresh", "limits", "taken_along"),
    [
        (True, [LIMIT], {"begun", "lasts"}),
        (False, [LIMIT], {"lasts"}),
        (False, [5, LIMIT], {"lasts"}),
        (True, [5, LIMIT], {"begun", "lasts"}),
        (False, [1], {"first", "last", "released", "begun", "lasts"}),
        (False, [LIMIT, 1], {"first", "last", "released", "begun", "lasts"}),
    ],
)
def test_whom_a_job_that_kills_may_take_along(
    make: Make, monkeypatch: pytest.MonkeyPatch, fresh: bool, limits: list[int], taken_along: set[str]
) -> None:
    first, *later = limits
    steps = tuple(Step(1.0, "limit", value={"max_deliveries": limit}) for limit in later)
    world = make(Story(1, Setting(max_deliveries=first, visibility_s=VISIBILITY_S), (), steps))
    world.limits += later
    worker = world.actors["worker-1"]
    assert isinstance(worker, OurWorker)
    world.server.keys.values[KEYS.quarantine.encode()] = {
        b"released-0": b"stream,,0",
        b"begun-0": b"stream,1,1",
        b"lasts-0": b"stream,1,1",
    }
    in_hand = [held("first", 1), held("last", LIMIT), held("released", LIMIT), held("begun", LIMIT, world.loop.now)]
    in_hand.append(held("lasts", LIMIT, world.loop.now - VISIBILITY_S))
    process = SimpleNamespace(_context=SimpleNamespace(membership=SimpleNamespace(visibility_s=VISIBILITY_S)))
    monkeypatch.setattr(worker, "_worker", process)
    monkeypatch.setattr(worker, "_held", lambda: in_hand)
    worker._blame_last_deliveries(fresh=fresh)
    assert {execution.job for execution in world.ledger.endings} == taken_along
