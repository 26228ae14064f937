"""Deletions by third parties."""

from typing import TYPE_CHECKING

from tests.simulation.places import GROUP, KEYS
from tests.simulation.story import Step
from workers.protocol.messages import pair_up, read_metadata, text

if TYPE_CHECKING:
    from tests.simulation.world import World


def _is_answered(world: "World") -> bool:
    return not (world.network.refusing or world.server_process.closed)


def delete_an_entry(world: "World", step: Step) -> None:
    """Delete an entry of the stream."""
    rows = world.command("XRANGE", KEYS.stream, "-", "+")
    if rows and _is_answered(world):
        entry_id, flat = rows[int(step.value * len(rows))]
        world.ledger.lost.add(text(read_metadata(entry_id, pair_up(flat)).job_id))
        world.command("XDEL", KEYS.stream, entry_id)


def delete_settings(world: "World", step: Step) -> None:  # noqa: ARG001
    """Delete the group settings."""
    if _is_answered(world):
        world.command("DEL", KEYS.settings)


def destroy_group(world: "World", step: Step) -> None:
    """Destroy the group of the stream, or of its retry stream."""
    if _is_answered(world):
        source = KEYS.stream if step.value == "stream" else KEYS.retry
        world.drops.note(source)
        world.losses.of_ends = True
        world.command("XGROUP", "DESTROY", source, GROUP)


def delete_consumer(world: "World", step: Step) -> None:
    """Delete a consumer of the group."""
    rows = world.command("XINFO", "CONSUMERS", KEYS.stream, GROUP)
    if isinstance(rows, list) and rows and _is_answered(world):
        consumer = rows[int(step.value * len(rows))][1]
        world.say(f"It is {text(consumer)}.")
        world.drops.note(KEYS.stream, consumer)
        world.losses.of_ends = True
        world.command("XGROUP", "DELCONSUMER", KEYS.stream, GROUP, consumer)


def flush(world: "World", step: Step) -> None:  # noqa: ARG001
    """Delete everything."""
    world.server.flush_all()
    world.losses.note_lost_jobs()
