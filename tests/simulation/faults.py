"""Faults and their targets: how each one is drawn, described, played and undone."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation import server_faults, third_parties
from tests.simulation.actors.replica import Replica
from tests.simulation.story import EMBEDDED, IN_PLACE, REAPER, Setting, Step
from tests.simulation.unserved import NEEDED

if TYPE_CHECKING:
    from tests.simulation.world import World

Effect = Callable[["World", Step], None]
Roles = Callable[[Setting], list[str]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault."""

    kind: str
    words: str
    """A sentence, with ``{who}``, ``{seconds}`` and ``{value}``."""
    effect: Effect
    roles: Roles | None = None
    """Whom it may befall; None = it is nobody's."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """For how long, drawn on a logarithmic scale; parts of the visibility timeout."""
    value: Callable[[Random, Setting], Any] | None = None
    modes: frozenset[str] = frozenset({REAPER, EMBEDDED})

    def may(self, setting: Setting) -> bool:
        """Tell whether it makes sense here."""
        return setting.recovery in self.modes and (self.roles is None or bool(self.roles(setting)))

    def draw(self, random: Random, setting: Setting, at: float) -> Step:
        """Draw one."""
        shortest, longest = self.seconds
        seconds = shortest * (longest / shortest) ** random.random() * setting.visibility_s if longest else 0.0
        return Step(
            at,
            self.kind,
            random.choice(self.roles(setting)) if self.roles else "",
            round(seconds, 1),
            self.value(random, setting) if self.value else None,
        )

    def sentence(self, step: Step) -> str:
        """Return the description of a fault."""
        words = self.words.format(who=step.who, seconds=f"{step.seconds:g} s", value=step.value)
        return f"From now on, at the next moment '{step.on}': {words}" if step.on else words


def workers_of(setting: Setting) -> list[str]:
    """Return the workers of ours."""
    return [f"worker-{number}" for number in range(1, setting.workers + 1)]


def bare_of(setting: Setting) -> list[str]:
    """Return the bare workers."""
    return [f"bare-{number}" for number in range(1, setting.bare_workers + 1)]


def replicas_of(setting: Setting) -> list[str]:
    """Return the replicas."""
    return [f"reaper-{number}" for number in range(1, setting.replicas + 1)] if setting.recovery == REAPER else []


def _everybody(setting: Setting) -> list[str]:
    return workers_of(setting) + bare_of(setting) + replicas_of(setting)


# ---- processes


def _kill(world: "World", step: Step) -> None:
    world.kill(step.who, again_after_s=step.seconds)


def _power_off(world: "World", step: Step) -> None:
    world.kill(step.who, again_after_s=step.seconds, abruptly=True)


def _stop(world: "World", step: Step) -> None:
    world.stop(step.who, again_after_s=step.seconds)


def _pause(world: "World", step: Step) -> None:
    world.pause(step.who, step.seconds)


def _suspend(world: "World", step: Step) -> None:
    world.pause(step.who, step.seconds, suspended=True)


# ---- the network


def _cut(world: "World", step: Step) -> None:
    world.network.reset(step.who)


def _part(world: "World", step: Step) -> None:
    weather = world.network.weather(step.who)
    weather.held_requests = step.value in ("requests", "both")
    weather.held_replies = step.value in ("replies", "both")
    world.blame.lose_sight_of(step.who, step.seconds)
    world.later(step.seconds, lambda: world.network.release(step.who))


def _lose(world: "World", step: Step) -> None:
    weather = world.network.weather(step.who)
    weather.losing_requests, weather.losing_replies = (0.2, 0.0) if step.value == "requests" else (0.0, 0.2)
    world.blame.lose_sight_of(step.who, step.seconds)

    def end() -> None:
        weather.losing_requests = weather.losing_replies = 0.0

    world.later(step.seconds, end)


def _slow(world: "World", step: Step) -> None:
    weather = world.network.weather(step.who)
    before, weather.latency_s = weather.latency_s, (0.05, float(step.value))

    def end() -> None:
        weather.latency_s = before

    world.later(step.seconds, end)


def _refuse(world: "World", step: Step) -> None:
    weather = world.network.weather(step.who)
    weather.refused = True
    world.network.reset(step.who)
    world.blame.lose_sight_of(step.who, step.seconds)

    def end() -> None:
        weather.refused = False

    world.later(step.seconds, end)


OF_NETWORK = frozenset({"cut", "part", "lose", "slow", "refuse"})
"""They may befall a message that is about to be sent."""
DENIED = ("xreadgroup", "get", "set", "subscribe", "xadd", *NEEDED)
"""What everybody may lose the right to."""


def _any_lag(random: Random, setting: Setting) -> int:  # noqa: ARG001
    return random.choice((100, 1_000, 1_000, 5_000))


def _any_denied(random: Random, setting: Setting) -> str:  # noqa: ARG001
    return random.choice(DENIED)


# ---- operators


def _reconfigure(world: "World", step: Step) -> None:
    world.change_settings(**step.value)


def _brake(world: "World", step: Step) -> None:
    world.operators.let(f"pause for {step.seconds:g} s", lambda: world.operators.brake(step.seconds))


def _drain(world: "World", step: Step) -> None:
    replica = world.actors[step.who]
    assert isinstance(replica, Replica)
    world.operators.let(f"drain {step.who}", lambda: world.operators.drain(replica.replica_id, step.seconds))


def _redrive(world: "World", step: Step) -> None:  # noqa: ARG001
    world.operators.let("redrive", world.operators.redrive_all)


def _forget(world: "World", step: Step) -> None:  # noqa: ARG001
    world.operators.let("forget the group", world.operators.forget)


def _other_visibility(random: Random, setting: Setting) -> dict[str, Any]:
    return {"visibility_timeout": setting.visibility_s * random.choice((0.25, 0.5, 2.0, 4.0))}


def _other_limit(random: Random, setting: Setting) -> dict[str, Any]:  # noqa: ARG001
    return {"max_deliveries": random.choice((1, 2, 3, 5))}


def _other_policy(random: Random, setting: Setting) -> dict[str, Any]:
    policies = ("stream", "retry-stream", *((IN_PLACE,) if setting.redelivery == IN_PLACE else ()))
    return {"redelivery": random.choice(policies)}


def _switch(world: "World", step: Step) -> None:
    world.switch_mode(step.seconds)


_ONLY_REAPER = frozenset({REAPER})

FAULTS = {
    fault.kind: fault
    for fault in (
        Fault("kill", "{who} is killed, and started again after {seconds}.", _kill, _everybody, (0.02, 3)),
        Fault(
            "power-off",
            "The machine of {who} loses power: nobody tells the server. It is there again after {seconds}.",
            _power_off,
            _everybody,
            (0.1, 3),
        ),
        Fault("stop", "{who} gets SIGTERM, and is started again after {seconds}.", _stop, _everybody, (0.02, 2)),
        Fault("pause", "{who} is stopped (SIGSTOP) for {seconds}.", _pause, _everybody, (0.02, 4)),
        Fault("suspend", "The machine of {who} is suspended for {seconds}.", _suspend, _everybody, (0.02, 4)),
        Fault("cut", "All connections of {who} are reset.", _cut, _everybody),
        Fault(
            "part",
            "{who} is cut off for {seconds}: {value} wait.",
            _part,
            _everybody,
            (0.02, 3),
            lambda random, _: random.choice(("requests", "replies", "both")),
        ),
        Fault(
            "lose",
            "The network of {who} loses {value} now and then, for {seconds}.",
            _lose,
            _everybody,
            (0.1, 3),
            lambda random, _: random.choice(("requests", "replies")),
        ),
        Fault(
            "slow",
            "The network of {who} is slow for {seconds}: up to {value} s each way.",
            _slow,
            _everybody,
            (0.1, 3),
            lambda random, _: random.choice((0.2, 1.0, 2.0)),
        ),
        Fault("freeze", "The server stands still for {seconds}.", server_faults.freeze, None, (0.02, 3)),
        Fault("restart", "The server restarts; it is away for {seconds}.", server_faults.restart, None, (0.01, 2)),
        Fault(
            "clock",
            "The server's clock is set by {value:+g} s.",
            server_faults.step_clock,
            None,
            value=lambda random, _: random.choice((-3600.0, -90.0, -6.0, -1.0, 1.0, 6.0, 90.0, 3600.0)),
        ),
        Fault("memory", "The server's memory is full for {seconds}.", server_faults.fill, None, (0.02, 2)),
        Fault(
            "loss",
            "The server restarts; it is away for {seconds}, and has lost what was written in the last {value} ms.",
            server_faults.restart,
            None,
            (0.01, 2),
            _any_lag,
        ),
        Fault(
            "failover",
            "The server ends; after {seconds} a replica takes its place that lagged by {value} ms.",
            server_faults.fail_over,
            None,
            (0.01, 0.5),
            _any_lag,
        ),
        Fault(
            "delete",
            "Somebody deletes an entry of the stream (at {value:.2f} of its length).",
            third_parties.delete_an_entry,
            None,
            value=lambda random, _: random.random(),
        ),
        Fault("flush", "Somebody calls FLUSHALL.", third_parties.flush, None),
        Fault(
            "settings",
            "A third party deletes the group settings.",
            third_parties.delete_settings,
            modes=frozenset(),
        ),
        Fault("deny", "Everybody is denied {value} for {seconds}.", server_faults.deny, None, (0.02, 2), _any_denied),
        Fault("scripts", "The server forgets all scripts.", server_faults.flush_scripts, None),
        Fault("visibility", "Reapers restart with {value}.", _reconfigure, value=_other_visibility, modes=_ONLY_REAPER),
        Fault("limit", "Reapers restart with {value}.", _reconfigure, value=_other_limit, modes=_ONLY_REAPER),
        Fault("policy", "Reapers restart with {value}.", _reconfigure, value=_other_policy, modes=_ONLY_REAPER),
        Fault("brake", "An operator pauses the group for {seconds}.", _brake, None, (0.1, 3), modes=_ONLY_REAPER),
        Fault("drain", "An operator drains {who} for {seconds}.", _drain, replicas_of, (0.1, 1), modes=_ONLY_REAPER),
        Fault(
            "mode",
            "Recovery is switched, to embedded or back; workers are restarted, and there again after {seconds}.",
            _switch,
            None,
            (0.02, 1),
        ),
        Fault("redrive", "An operator redrives all dead letters.", _redrive),
        Fault(
            "destroy-group",
            "Somebody destroys the group of the {value}.",
            third_parties.destroy_group,
            value=lambda random, _: random.choice(("stream", "stream", "retry stream")),
        ),
        Fault(
            "delete-consumer",
            "Somebody deletes a consumer of the group (at {value:.2f} of their list).",
            third_parties.delete_consumer,
            value=lambda random, _: random.random(),
        ),
        Fault("forget", "An operator has the group forgotten.", _forget),
        Fault(
            "clients",
            "The server takes no more than {value} clients on top of those it has, for {seconds}.",
            server_faults.limit_clients,
            None,
            (0.05, 2),
            lambda random, _: random.choice((0, 0, 1, 2)),
        ),
        Fault("load", "The server restarts, and reads its data for {seconds}.", server_faults.load, None, (0.05, 2)),
        Fault("refuse", "{who} is refused each connection for {seconds}.", _refuse, _everybody, (0.05, 3)),
    )
}  # fmt: skip
"""Every kind that a story may be drawn with."""
