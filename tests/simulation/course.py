"""The course of a story: each fault begins at its time, or at the next moment of the kind that it waits for."""

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.faults import FAULTS, OF_NETWORK
from tests.simulation.reached import Moment
from tests.simulation.story import HOLDER, ITSELF, OFFERED_TO, Step
from tests.simulation.tenancy import OFFER
from workers.protocol.messages import text

if TYPE_CHECKING:
    from tests.simulation.world import World


class Course:
    """Plays the steps of a story."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._waiting: dict[str, list[Step]] = {}
        self.befell: dict[str, float] = {}
        """When the last fault of each kind began, in seconds of the story."""
        self.troubled_until = 0.0
        """The end of the last fault so far."""
        self._is_over = False

    def begin(self) -> None:
        """Play all steps at their times."""
        for step in self._world.story.steps:
            self._world.loop.call_when(step.at, self._wait_for, step, context=self._world.context)

    def end(self) -> None:
        """Begin no more faults."""
        self._is_over, self.troubled_until = True, self._world.loop.now

    def _wait_for(self, step: Step) -> None:
        if step.on:
            self._waiting.setdefault(step.on, []).append(step)
        elif (who := self._role_meant_by(step.who, Moment())) is not None:
            self._befall(replace(step, who=who))

    def note(self, kind: str, moment: Moment) -> None:
        """Begin the faults that have waited for this moment."""
        for step in self._waiting.pop(kind, ()):
            who = self._role_meant_by(step.who, moment)
            if who is None:
                continue
            if step.kind in OF_NETWORK:  # before the message of this moment is sent
                self._befall(replace(step, who=who))
            else:
                loop = self._world.loop
                loop.call_when(loop.now, self._befall, replace(step, who=who), context=self._world.context)

    def _role_meant_by(self, who: str, moment: Moment) -> str | None:
        meant = {HOLDER: self._world.witness.tenancy.holder, ITSELF: moment.by, OFFERED_TO: self._offered_to(moment)}
        role = meant.get(who, who).partition("#")[0]
        return role if role in self._world.actors or not who else None

    def _offered_to(self, moment: Moment) -> str:
        """Return the role of the replica that the lease is offered to, or ''."""
        to = text(moment.said.removeprefix(OFFER))
        return next((one.role for one in self._world.replicas() if to and one.replica_id == to), "")

    def _befall(self, step: Step) -> None:
        world = self._world
        if self._is_over:
            return
        fault = FAULTS[step.kind]
        world.say(fault.sentence(step))
        self.troubled_until = max(self.troubled_until, world.loop.now + step.seconds)
        self.befell[step.kind] = world.loop.now
        world.note(f"fault {step.kind}", Moment(step.who))
        fault.effect(world, step)
