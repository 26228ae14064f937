"""The actors of a story."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulation.actors.actor import Actor
from tests.simulation.actors.bare_worker import BareWorker
from tests.simulation.actors.our_worker import OurWorker
from tests.simulation.actors.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.world import World


def make_actors(world: "World") -> Iterator[Actor]:
    """Make the actors that the setting of the story names."""
    setting = world.story.setting
    if world.story.has_replicas:
        for number in range(1, setting.replicas + 1):
            yield Replica(world, f"reaper-{number}")
    for number in range(1, setting.workers + 1):
        yield OurWorker(world, f"worker-{number}")
    if not world.recovers_itself:
        for number in range(1, setting.bare_workers + 1):
            yield BareWorker(world, f"bare-{number}")
