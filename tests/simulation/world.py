"""The world of a story on virtual time: a server, processes, the network between them, and faults.

Product code runs in it: `Producer`, `WorkerProcess`, `Reaper`, and the functions of operators.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from math import inf
from random import Random
from typing import Any

import hiredis

from reaper.drill.promises import Execution
from tests.simulation import server_faults
from tests.simulation.actors.actor import Actor
from tests.simulation.actors.cast import make_actors
from tests.simulation.actors.operators import Operators
from tests.simulation.actors.producers import Producers
from tests.simulation.actors.replica import Replica
from tests.simulation.blame import Blame
from tests.simulation.course import Course
from tests.simulation.drops import Drops
from tests.simulation.entropy import number_tasks
from tests.simulation.findings import Findings
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.losses import Losses
from tests.simulation.network import Link, Network
from tests.simulation.places import NAMESPACE
from tests.simulation.plays import Ledger, Telling
from tests.simulation.reached import Moment, Reached, script_in
from tests.simulation.server import ModelServer, Session
from tests.simulation.situations import SITUATIONS
from tests.simulation.story import EMBEDDED, REAPER, Story
from tests.simulation.undisturbed import take_down
from tests.simulation.unserved import Unserved
from tests.simulation.wall_clock import WallClock
from tests.simulation.witness import Witness
from workers.protocol.calls.membership import DEFAULT_MAX_DELIVERIES
from workers.protocol.errors import UnreachableError, UnsupportedServerError

logger = logging.getLogger(__name__)

LISTS_CONSUMERS = b"\r\nCONSUMERS\r\n"
"""A part of the request of a replica that looks for missing consumers."""
DENIAL_IS_READ_S = 5.0
"""A process that was denied something may end by that for so long after everybody has the permission again."""
ROLLING_S = 1.0
"""Seconds between two stops of a rolling restart. A stopped replica starts again after half of it."""
SUPERVISED_S = (1.0, 3.0)
"""Seconds until a process that ended by itself starts again."""


class World:
    """Plays one story. The story and its seed decide everything that happens."""

    def __init__(self, story: Story, tell: Callable[[float, str], None] | None = None) -> None:
        """``tell`` gets each event, with its time in seconds."""
        self.story = story
        self.recovery = story.setting.recovery
        """The recovery mode now: replicas, or workers by themselves."""
        self.loop = SimulatedLoop()
        self.loop.set_exception_handler(self._callback_failed)
        number_tasks(self.loop)
        self.random = Random(f"world {story.seed}")
        self.ledger = Ledger()
        self.findings = Findings()
        self.server_process = Process(self.loop, "redis")
        self.clock = WallClock(self.loop, self.server_process)
        self.witness = Witness(self)
        self.server = self.watched(ModelServer(version=story.setting.version, clock=self.clock))
        self.unserved = Unserved(lambda: self.loop.now)
        self.reached = Reached(self, SITUATIONS)
        self.course = Course(self)
        self.went_on: dict[str, float] = {}
        """When a process that was paused continued, in seconds of the story."""
        self.network = Network(self.loop, Random(f"network {story.seed}"), self._accept, self.server_process)
        self.network.watch = self._hear
        self.losses, self.blame = Losses(self), Blame(self)
        self.network.answered = self.blame.what_is_handed_out
        self.network.sends = self._sends
        self.loop.connect = self.network.connect
        self.ledger.begins = lambda process: self.note("started", Moment(process))
        self.drops = Drops(self)
        self.operators = Operators(self)
        self.producer = Producers(self, "producer")
        self.actors: dict[str, Actor] = {actor.role: actor for actor in (*make_actors(self), self.producer)}
        self.context = Context()
        self._tell = tell
        self._digest = hashlib.blake2b(digest_size=16)
        self.tellings: list[Telling] = []
        """The times at which replicas or workers reported losses, and the losses."""
        self.visibilities = [story.setting.visibility_s]
        """All visibility timeouts of the group settings."""
        self._former_visibilities: list[tuple[float, float]] = []
        """The end of each former timeout, in seconds of the story, and the timeout."""
        self.allowed_at = -inf
        """The last time at which everybody got a permission back."""
        self.limits = [story.setting.max_deliveries]
        """All limits of deliveries of the group settings."""
        if not story.setting.own_timeout:  # workers use the defaults until the first group settings exist
            self.limits.append(DEFAULT_MAX_DELIVERIES)

    def watched(self, server: ModelServer) -> ModelServer:
        """Hear all that ``server`` does, for as long as it is the one of the world."""

        def wrote(words: list[bytes], reply: Any) -> None:
            if server is self.server:  # otherwise a replica has replaced it, and its later writes are lost
                self.witness.wrote(words, reply)

        def not_allowed(words: list[bytes]) -> None:
            if server is self.server:
                self.witness.was_not_allowed(words)

        def executed(words: list[bytes], reply: Any) -> None:
            if server is self.server:
                self.reached.executed(words, reply)

        server.wrote, server.step_over, server.not_allowed = wrote, self.witness.step_over, not_allowed
        server.executed = executed
        return server

    def _accept(self, send: Callable[[bytes], None], on_close: Callable[[], None]) -> Session:
        if len(self.server.sessions) >= self.server.max_clients:
            self.note("error MAX", Moment())
        return self.server.connect(send, on_close)  # the server of this moment

    # ---- events

    @property
    def digest(self) -> str:
        """Return a digest of all that went over the network, with the times."""
        return self._digest.hexdigest()

    def say(self, sentence: str) -> None:
        """Report an event."""
        self._digest.update(f"{self.loop.now:.6f} {sentence}\n".encode())
        if self._tell:
            self._tell(self.loop.now, sentence)

    def _hear(self, link: Link, what: str, data: bytes) -> None:
        if what == "request":
            self.witness.caller = link.process.name if link.process else ""
            if LISTS_CONSUMERS in data and link.process and link.process.role.startswith("reaper"):
                self.drops.replica_looks()
        self._digest.update(b"%.6f %d " % (self.loop.now, link.number) + data)
        if self._tell:
            who = link.process.name if link.process else "judge"
            self._tell(self.loop.now, f"{who} {'→' if what == 'request' else '←'} {data[:300]!r}")

    def _sends(self, link: Link, data: bytes) -> None:
        if name := script_in(data, self.server.scripts):
            self.note(f"sent {name}", Moment(link.process.name if link.process else ""))
            actor = self.actors.get(link.process.role) if link.process else None
            if name == "lease_take" and link.process and isinstance(actor, Replica) and not actor.serves:
                self.witness.tenancy.asks(link.process.name)

    def _callback_failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.over:
            self.findings.add(f"X: {context.get('message')}: {error!r}")
            logger.error("%s", context.get("message"), exc_info=error)

    over = False

    # ---- time

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later, by the clock of the world."""
        self.loop.call_when(self.loop.now + seconds, action, context=self.context)

    # ---- processes

    def launch(self, role: str) -> None:
        """Start a process, unless it runs."""
        actor = self.actors[role]
        if (actor.process is not None and not actor.process.dead) or not actor.is_wanted:
            return
        actor.incarnation += 1
        process = actor.process = Process(self.loop, f"{role}#{actor.incarnation}", role=role)
        task = process.start(actor.run(process))
        task.add_done_callback(lambda task: self._ended(actor, process, task), context=self.context)

    def _ended(self, actor: Actor, process: Process, task: "asyncio.Task[None]") -> None:
        if process.dead or self.over:
            return
        process.kill()
        self.drops.ended(process.name)
        self.blame.what_is_left_by(actor)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.say(f"{process.name} ends: {error!r}")
            for one in _leaves(error):
                if not isinstance(one, UnreachableError) and not self._misses_a_right(one):
                    self.findings.add(f"X: {process.role} died of {type(one).__name__}: {one}")
                    logger.error("%s died", process.name, exc_info=error)
        again_s = actor.again_after_s if actor.again_after_s is not None else self.random.uniform(*SUPERVISED_S)
        actor.again_after_s = None
        if actor.supervised:
            self.later(again_s, lambda: self.launch(actor.role))

    def _misses_a_right(self, error: BaseException) -> bool:
        """Return whether a process did not start because a permission was missing, and reported it."""
        return isinstance(error, UnsupportedServerError) and (
            bool(self.server.denied) or self.loop.now - self.allowed_at < DENIAL_IS_READ_S
        )

    def alive(self, role: str) -> Process | None:
        """Return the process that plays a role now."""
        process = self.actors[role].process
        return None if process is None or process.dead else process

    def kill(self, role: str, *, again_after_s: float, abruptly: bool = False, by: Execution | None = None) -> None:
        """End a process, and start it again later. ``by`` is the job that ended it."""
        process = self.alive(role)
        if process is None:
            return
        if by is None or self.drops.has_unheld(process.name):
            self.blame.what_is_in_hand(role)
            if self.story.least_limit == 1:  # no job is quarantined with this limit (decision 7)
                self.blame.what_is_left_by(self.actors[role])
        self.note("killed", Moment(process.name))
        process.kill()
        self.drops.ended(process.name)
        if abruptly:
            self.network.reset(role, both=False)
        else:
            self.network.leave(role)
        for execution in self.ledger.running_in(process.name):
            self.ledger.leave(execution, process.name)
        self.later(again_after_s, lambda: self.launch(role))

    def stop(self, role: str, *, again_after_s: float) -> None:
        """Ask a process to end, and start it again later."""
        process, actor = self.alive(role), self.actors[role]
        if process is not None:
            actor.again_after_s = again_after_s
            process.start(actor.stop())

    def pause(self, role: str, seconds: float, *, suspended: bool = False) -> None:
        """Pause a process."""
        process = self.alive(role)
        if process is None or process.closed:
            return
        self.blame.lose_sight_of(role, seconds)  # the server answers a waiting read meanwhile
        process.pause()
        if suspended:
            process.suspend_clock(seconds)

        def resume() -> None:
            process.resume()
            self.went_on[process.name] = self.loop.now
            if not process.dead:
                self.say(f"{process.name} goes on.")

        self.later(seconds, resume)

    def block(self, process: Process, seconds: float) -> None:
        """Let a process block its event loop."""
        process.block()
        self.later(seconds, process.unblock)

    # ---- settings

    def longest_visibility_since(self, at: float) -> float:
        """Return the longest timeout in force since an instant of the story, in seconds."""
        return max(self.visibilities[-1], *(timeout for end, timeout in self._former_visibilities if end >= at), 0.0)

    def change_settings(self, **changes: Any) -> None:
        """Give all replicas other settings, by a rolling restart."""
        replicas = self.replicas()
        if "visibility_timeout" in changes:
            self._former_visibilities.append((self.loop.now + len(replicas) * ROLLING_S, self.visibilities[-1]))
            self.visibilities.append(changes["visibility_timeout"])
        if "max_deliveries" in changes:
            self.limits.append(changes["max_deliveries"])
        for number, replica in enumerate(replicas):
            replica.change_settings(changes)
            self.later(number * ROLLING_S, partial(self.stop, replica.role, again_after_s=ROLLING_S / 2))

    def switch_mode(self, seconds: float) -> None:
        """Switch recovery from replicas to workers, or back."""
        self.recovery = REAPER if self.recovers_itself else EMBEDDED
        self.say(f"Recovery is {self.recovery} from now on.")
        for role, actor in self.actors.items():
            if actor.goes_by_mode and self.alive(role) is not None:
                self.stop(role, again_after_s=seconds)
            elif actor.supervised:
                self.launch(role)

    # ---- the server

    def command(self, *words: str | bytes | int) -> Any:
        """Run a command at once, by a user with all permissions."""
        answers, server = hiredis.Reader(), self.server
        self.witness.caller = ""
        kept = server.max_clients, server.is_loading, server.denied
        server.max_clients, server.is_loading, server.denied = server_faults.MOST_CLIENTS, False, set()
        session = server.connect(answers.feed)
        session.feed(hiredis.pack_command(words))  # type: ignore[arg-type]
        session.close()
        server.max_clients, server.is_loading, server.denied = kept
        return answers.gets()

    def told(self, error: str, consumer: str) -> None:
        """Note that a replica or a worker reports a loss."""
        self.tellings.append(Telling(self.loop.now, error, consumer))

    # ---- the story

    def run(self, program: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a program of the world's own until it ends."""
        return self.loop.run_until_complete(program())

    def begin(self) -> None:
        """Start all actors, and play all faults at their times."""
        for role in self.actors:
            self.launch(role)
        self.course.begin()

    def note(self, kind: str, moment: Moment) -> None:
        """Note an event that a fault may wait for (`tests.simulation.reached`)."""
        self.reached.note(kind, moment)
        self.course.note(kind, moment)

    def replicas(self) -> list[Replica]:
        """Return all replicas, dead ones included."""
        return [actor for actor in self.actors.values() if isinstance(actor, Replica)]

    def heal(self) -> None:
        """End all faults: continue paused processes, and start missing ones."""
        self.course.end()
        self.say("Nothing befalls anybody any more.")
        for weather in self.network.weathers():
            weather.calm()
        server_faults.end_all(self)
        for role, actor in self.actors.items():
            self.network.release(role)
            if actor.process is not None and not actor.process.dead:
                actor.process.resume()
            if actor.supervised:
                self.launch(role)
        self.command("DEL", NAMESPACE.drained)
        self.operators.let("resume", lambda: self.operators.set_paused(False))

    def end(self) -> None:
        """Forget the whole state."""
        self.over = True
        take_down(self.loop)

    @property
    def recovers_itself(self) -> bool:
        """Return whether workers recover by themselves."""
        return self.recovery != REAPER


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
