"""Worlds for tests that act in them themselves."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.simulation.entropy import drawn_from
from tests.simulation.patience import patient
from tests.simulation.python_312 import as_in_312
from tests.simulation.story import Story
from tests.simulation.undisturbed import undisturbed
from tests.simulation.world import World
from workers.runtime.clock import going_by

Make = Callable[[Story], World]


@pytest.fixture(autouse=True)
def _reads_are_short() -> None:
    """Let reads block for as long as they do outside of tests: virtual time costs nothing."""


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as stack:

        def make_world(story: Story) -> World:
            for block in (undisturbed(), drawn_from(str(story.seed)), patient(story.setting)):
                stack.enter_context(block)
            world = World(story)
            stack.enter_context(going_by(world.loop.time))
            stack.enter_context(as_in_312(world.loop))
            stack.callback(world.end)
            return world

        yield make_world
