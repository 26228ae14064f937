"""Plays a story to its end, and judges it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.draw import draw
from tests.simulation.entropy import drawn_from
from tests.simulation.judge import is_over, judgement, only_waits
from tests.simulation.patience import patient
from tests.simulation.places import URL
from tests.simulation.python_312 import as_in_312
from tests.simulation.replica_log import read_log
from tests.simulation.stillness import Stillness
from tests.simulation.story import Story
from tests.simulation.undisturbed import undisturbed
from tests.simulation.world import World
from workers.protocol.connection import commands_client
from workers.runtime.clock import going_by

PATIENCE = 60
"""So many visibility timeouts may pass after the last fault until all work is done."""
TELLING = 3
"""So many pass at least where others have dropped deliveries: full scans and housekeeping find it, and tell."""
BUSY_TURNS, BUSY_TURNS_A_S = 30_000, 12
"""So many turns of the event loop are much, at once and in a second of a process: one that nobody lets in takes seven,
as long as it is kept out. Who asks again and again takes dozens of times that."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a story."""

    story: Story
    violations: tuple[str, ...]
    digest: str
    """Stands for all that went over the network, and when."""
    virtual_s: float
    turns: int
    executions: int
    reached: frozenset[str] = frozenset()
    """The names of the situations that it has met: `tests.simulation.reached`."""


def play_seed(seed: int) -> Outcome:
    """Play the story of a seed."""
    return play(draw(seed))


def play(story: Story, tell: Callable[[float, str], None] | None = None) -> Outcome:
    """Play a story. ``tell`` is told what happens."""
    disabled = logging.root.manager.disable
    if tell is None:
        logging.disable(logging.CRITICAL)
    try:
        with undisturbed():
            return _outcome(story, tell)
    finally:
        logging.disable(disabled)


def _outcome(story: Story, tell: Callable[[float, str], None] | None) -> Outcome:
    with drawn_from(str(story.seed)), patient(story.setting):
        world = World(story, tell)
        try:
            with going_by(world.loop.time), as_in_312(world.loop), read_log(world.told):
                violations = world.run(lambda: _play(world))
        finally:
            world.end()
        if world.loop.turns > BUSY_TURNS + BUSY_TURNS_A_S * story.setting.processes * world.loop.now:
            hot = f"hot: {world.loop.turns} turns in {world.loop.now:.0f} s: somebody never pauses"
            violations = [*violations, hot]
        return Outcome(
            story,
            tuple(violations),
            world.digest,
            world.loop.now,
            world.loop.turns,
            len(world.ledger.starts),
            frozenset(world.reached.names),
        )


async def _play(world: World) -> list[str]:
    world.begin()
    client, stillness = commands_client(URL), Stillness(world)
    while (left_s := world.story.length_s - world.loop.now) > 0:
        await asyncio.sleep(min(left_s, stillness.looks_s))
        await stillness.look(client)
    world.heal()
    visibility_s = max(world.visibilities)
    # A word that was given before the server's clock was set back counts until the clock is there again.
    tells_s = TELLING * visibility_s + world.clock.set_back_s if world.ledger.dropped else 0.0
    told_at, finished = world.loop.now + tells_s, False
    ends_at = told_at + PATIENCE * visibility_s
    late_s = 0.0
    while world.loop.now < ends_at + late_s and not finished:
        if only_waits(world):  # as much later as the server's clock was set back
            late_s = min(late_s + stillness.looks_s, world.clock.set_back_s)
        await asyncio.sleep(stillness.looks_s)
        await stillness.look(client)
        finished = is_over(world.server.keys) and not world.producer.left and world.loop.now > told_at
    return await judgement(world, client, finished=finished)
