"""Faults of the server: their effects on a world, and their end."""

from typing import TYPE_CHECKING

from tests.simulation.story import WRITE, Step

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_CLIENTS = 10_000
LOADS_AFTER_S = 0.1


def freeze(world: "World", step: Step) -> None:
    """Pause the server."""
    world.server_process.pause()
    world.unserved.begins("frozen")
    world.later(step.seconds, lambda: _thaw(world))


def _thaw(world: "World") -> None:
    world.server_process.resume()
    world.unserved.ends("frozen")
    world.network.server_goes_on()


def restart(world: "World", step: Step) -> None:
    """End the server, and start it again later, without the writes of the last ``step.value`` milliseconds."""
    _go_away(world)
    held, lost_ms = world.losses.holders(), step.value or 0
    world.server.restart(lost_ms)
    if lost_ms:
        world.losses.note(lost_ms, held)
    world.later(step.seconds, lambda: _come_back(world))


def fail_over(world: "World", step: Step) -> None:
    """End the server, and let a replica that lags by ``step.value`` milliseconds replace it."""
    _go_away(world)
    held = world.losses.holders()
    world.server = world.watched(world.server.copy(lag_ms=step.value))
    world.server.readonly(is_replica=False)
    world.losses.note(step.value, held)
    world.later(step.seconds, lambda: _come_back(world))


def _go_away(world: "World") -> None:
    world.network.refusing = True
    world.unserved.begins("away")
    world.network.drop_all()


def _come_back(world: "World") -> None:
    if world.network.refusing:
        world.clock.restarted()
        world.network.refusing = False
        world.unserved.ends("away")
        world.say("The server is there again.")


def load(world: "World", step: Step) -> None:
    """Restart the server, and let it read its data for some time."""
    restart(world, Step(step.at, "restart", seconds=LOADS_AFTER_S))
    server = world.server
    server.loading(is_loading=True)
    world.unserved.begins("loading")

    def loaded() -> None:
        server.loading(is_loading=False)
        world.unserved.ends("loading")

    world.later(LOADS_AFTER_S + step.seconds, loaded)


def step_clock(world: "World", step: Step) -> None:
    """Set the clock."""
    world.command("PING")
    world.server.keys.all_keys()  # Redis deletes expired keys that no client asks for, so a step back revives none
    world.clock.step(float(step.value))


def fill(world: "World", step: Step) -> None:
    """Fill the server's memory, so that it rejects writes."""
    world.server.fill(full=True)
    world.later(step.seconds, lambda: world.server.fill(full=False))


def limit_clients(world: "World", step: Step) -> None:
    """Let the server accept ``step.value`` clients more than it has now, and no others."""
    if world.network.refusing:  # otherwise the present clients could be among those that it refuses
        for role in world.actors:
            world.blame.lose_sight_of(role, step.seconds)
    server = world.server
    server.max_clients = len(server.sessions) + step.value

    def accept_all() -> None:
        server.max_clients = MOST_CLIENTS

    world.later(step.seconds, accept_all)


def deny(world: "World", step: Step) -> None:
    """Take the permission for a command from all users for some time. With `WRITE`, the server rejects writes."""
    world.unserved.denied(step.value)
    if step.value == WRITE:
        world.server.lacks_replicas = True
    else:
        world.server.denied.add(step.value)
    world.later(step.seconds, lambda: _allow(world, step.value))


def _allow(world: "World", command: str) -> None:
    world.unserved.ends(command)
    world.allowed_at = world.loop.now
    if command == WRITE:
        world.server.lacks_replicas = False
    else:
        world.server.denied.discard(command)


def flush_scripts(world: "World", step: Step) -> None:  # noqa: ARG001
    """Delete all scripts."""
    world.server.script_flush()


def end_all(world: "World") -> None:
    """End all faults of the server."""
    _thaw(world)
    _come_back(world)
    world.server.fill(full=False)
    world.server.loading(is_loading=False)
    world.server.max_clients = MOST_CLIENTS
    world.server.denied.clear()
    world.allowed_at = world.loop.now
    world.server.lacks_replicas = False
    world.unserved.all_end()
