"""The world of a story on virtual time: a server, processes, the network between them, and faults.

Product code runs in it: `Producer`, `WorkerProcess`, `Reaper`, and the functions of operators.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from random import Random
from typing import Any

import hiredis

from reaper.drill.promises import Execution
from tests.simulation.actors.actor import Actor
from tests.simulation.actors.cast import make_actors
from tests.simulation.actors.operators import Operators
from tests.simulation.actors.producers import Producers
from tests.simulation.actors.replica import Replica
from tests.simulation.drops import Drops
from tests.simulation.entropy import number_tasks
from tests.simulation.faults import FAULTS, OF_NETWORK
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Link, Network
from tests.simulation.places import EPOCH_S, GROUP, KEYS, NAMESPACE
from tests.simulation.plays import Ledger, Telling
from tests.simulation.reached import Moment, Reached, script_in
from tests.simulation.server import ModelServer, Session
from tests.simulation.server.streams import Pending, Stream
from tests.simulation.server.words import entry_id as number_of
from tests.simulation.server.words import id_text
from tests.simulation.situations import SITUATIONS
from tests.simulation.story import EMBEDDED, HOLDER, ITSELF, OFFERED_TO, REAPER, WRITE, Step, Story
from tests.simulation.tenancy import OFFER
from tests.simulation.undisturbed import take_down
from tests.simulation.unserved import Unserved
from tests.simulation.witness import Witness
from workers.protocol.calls.membership import DEFAULT_MAX_DELIVERIES
from workers.protocol.errors import StreamReaperError, UnreachableError, UnsupportedServerError
from workers.protocol.messages import pair_up, read_metadata, text

logger = logging.getLogger(__name__)

LISTS_CONSUMERS = b"\r\nCONSUMERS\r\n"
"""A part of the request of a replica that looks for missing consumers."""
MOST_CLIENTS = 10_000
LOADS_AFTER_S = 0.1
DENIAL_IS_READ_S = 5.0
"""A process that was denied something may end by that for so long after everybody has the permission again."""
ROLLING_S = 1.0
"""Seconds between two stops of a rolling restart. A stopped replica starts again after half of it."""
SUPERVISED_S = (1.0, 3.0)
"""Seconds until a process that ended by itself starts again."""


class WallClock:
    """The server's clock, which is the loop's time plus the steps that were set. The uptime follows it."""

    def __init__(self, loop: SimulatedLoop, server: Process) -> None:
        self._loop = loop
        self._server = server
        self._ahead_s = 0.0
        self.set_back_s = 0.0
        """The sum of all steps back, in ms…"""
        self.set_back_at = -inf
        """… and the time of the last one, in seconds of the story."""
        self.steps: list[tuple[float, float]] = []
        """The time of each step, in seconds of the story, and its size."""
        self._started_s = float(EPOCH_S)

    def now_us(self) -> int:
        """Return microseconds since the epoch."""
        return int((EPOCH_S + self._loop.now + self._ahead_s) * 1e6)

    def uptime_s(self) -> int:
        """Return the uptime that the server reports."""
        return int(self.now_us() / 1e6 - self._started_s)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Let the server call ``callback``."""
        return self._loop.call_when(self._loop.now + delay_s, callback, context=self._server.context)

    def step(self, seconds: float) -> None:
        """Set the clock."""
        self._ahead_s += seconds
        self.steps.append((self._loop.now, seconds))
        if seconds < 0:
            self.set_back_s -= seconds
            self.set_back_at = self._loop.now

    def set_ahead_since_s(self, since: float) -> float:
        """Return the sum of the steps ahead since then."""
        return sum(by_s for at, by_s in self.steps if at > since and by_s > 0)

    def restarted(self) -> None:
        """Count the uptime from now on."""
        self._started_s = self.now_us() / 1e6


@dataclass(slots=True)
class Findings:
    """A violation that the story met while it was played."""

    sentences: list[str] = field(default_factory=list)

    known: set[str] = field(default_factory=set)

    def add(self, sentence: str, when: str = "") -> None:
        """Note a violation once. ``when`` returns the step that caused it."""
        if sentence not in self.known:
            self.known.add(sentence)
            self.sentences.append(f"{sentence} ({when})" if when else sentence)


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
        self.server = self._watched(ModelServer(version=story.setting.version, clock=self.clock))
        self.unserved = Unserved(lambda: self.loop.now)
        self.reached = Reached(self, SITUATIONS)
        self._waiting: dict[str, list[Step]] = {}
        self.befell: dict[str, float] = {}
        """When the last fault of each kind began, in seconds of the story."""
        self.went_on: dict[str, float] = {}
        """When a process that was paused continued, in seconds of the story."""
        self.network = Network(self.loop, Random(f"network {story.seed}"), self._accept, self.server_process)
        self.network.watch = self._hear
        self.network.answered = self._blame_what_is_handed_out
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
        self._numbers: dict[int, int] = {}
        self._errands = 0
        self.healed = False
        self.troubled_until = 0.0
        """The end of the last fault so far."""
        self.has_lost_writes = False
        self.has_lost_ends = False
        """The server has lost settlements."""
        """Sources whose group was destroyed, or may look like another one at the next scan of a holder."""
        self._unheld: dict[tuple[str, bytes, bytes], float] = {}
        """The time at which the server lost a delivery, by consumer, stream and entry."""
        self._writes_lost: list[tuple[float, float]] = []
        """The spans of time in which the server has lost its writes."""
        """The number of deliveries of each job whose end the server has lost."""
        self.tellings: list[Telling] = []
        """The times at which replicas or workers reported losses, and the losses."""
        self.visibilities = [story.setting.visibility_s]
        """All visibility timeouts of the group settings."""
        self._former_visibilities: list[tuple[float, float]] = []
        """The end of each former timeout, in seconds of the story, and the timeout."""
        self._allowed_at = -inf
        """The last time at which everybody got a permission back."""
        self.limits = [story.setting.max_deliveries]
        """All limits of deliveries of the group settings."""
        if not story.setting.own_timeout:  # workers use the defaults until the first group settings exist
            self.limits.append(DEFAULT_MAX_DELIVERIES)

    def _watched(self, server: ModelServer) -> ModelServer:
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
        self._blame_what_is_left_by(actor)
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
            any(self.server.denied.values()) or self.loop.now - self._allowed_at < DENIAL_IS_READ_S
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
            self.blame_what_is_in_hand(role)
            if self.story.least_limit == 1:  # no job is quarantined with this limit (decision 7)
                self._blame_what_is_left_by(self.actors[role])
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
        self.lose_sight_of(role, seconds)  # the server answers a waiting read meanwhile
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

    def lose_sight_of(self, role: str, seconds: float) -> None:
        """Note that a process looks dead to the other ones for some time, so its jobs may be recovered.

        This holds for the jobs that it runs, and for those that it receives or begins meanwhile, because it asked
        before.
        """
        self.blame_what_is_in_hand(role)
        self.ledger.out_of_sight[role] += 1

        def see() -> None:
            self.ledger.out_of_sight[role] -= 1
            self.blame_what_is_in_hand(role)

        self.later(seconds, see)

    def _blame_what_is_handed_out(self, link: Link) -> None:
        process = link.process
        if process is None:
            return
        # With one delivery, a job that is read has used it up, and no job is quarantined (decision 7).
        if self.ledger.out_of_sight[process.role] or (process.dead and self.story.least_limit == 1):
            now_ms = self.server.now_ms
            self._blame_pending(lambda row: row.delivered_ms >= now_ms)

    def _blame_what_is_left_by(self, actor: Actor) -> None:
        """Note that the jobs which a process runs, and those which it was to receive, end with it."""
        if actor.consumer:
            self._blame_pending(lambda row: row.consumer is not None and row.consumer.name == actor.consumer)

    def _blame_pending(self, is_meant: Callable[[Pending], bool]) -> None:
        for key in (KEYS.stream, KEYS.retry):
            stream = self.server.keys.values.get(key.encode())
            if not isinstance(stream, Stream) or (group := stream.groups.get(GROUP.encode())) is None:
                continue
            for number, row in group.pending.values.items():
                if is_meant(row):
                    for execution in self._executions_of(key, number):
                        self.ledger.blame(execution)

    def _executions_of(self, key: str, number: int) -> Iterator[Execution]:
        """Yield the executions in the process to which an entry is delivered, if it runs."""
        stream = self.server.keys.values.get(key.encode())
        if isinstance(stream, Stream) and number in stream.entries:
            flat: Any = stream.entries.values[number][1]
            metadata = read_metadata(id_text(number), pair_up(flat))
            yield Execution(text(metadata.job_id), metadata.generation)

    def blame_what_is_in_hand(self, role: str) -> None:
        """Note that the jobs of a process may end with it, as far as the other ones see."""
        actor = self.actors.get(role)
        if actor is not None:
            for execution in actor.in_hand():
                self.ledger.blame(execution)

    # ---- operators

    def operate(self, what: str, errand: Callable[[], Awaitable[None]]) -> None:
        """Let an operator do something, in a process of its own."""
        self._errands += 1
        process = Process(self.loop, f"operator#{self._errands}", role="operator")

        async def run() -> None:
            try:
                await errand()
            except (StreamReaperError, OSError) as error:
                self.say(f"An operator failed to {what}: {error}")
            except Exception as error:  # noqa: BLE001
                self.say(f"An operator failed to {what}: {error!r}")

        process.start(run())

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

    def freeze_server(self, seconds: float) -> None:
        """Pause the server."""
        self.server_process.pause()
        self.unserved.begins("frozen")
        self.later(seconds, self.thaw_server)

    def thaw_server(self) -> None:
        """Continue the server."""
        self.server_process.resume()
        self.unserved.ends("frozen")
        self.network.server_goes_on()

    def restart_server(self, seconds: float, *, lose_last_ms: int = 0) -> None:
        """End the server, and start it again later."""
        self._server_is_away()
        held = self._holders()
        self.server.restart(lose_last_ms)
        if lose_last_ms:
            self._writes_lost.append((self.loop.now - lose_last_ms / 1000, self.loop.now))
            self.note_what_is_lost()
            self._blame_what_was_settled_for_nothing(held)
            self._note_what_nobody_holds(held)
        self.later(seconds, self._server_is_back)

    def _server_is_away(self) -> None:
        self.network.refusing = True
        self.unserved.begins("away")
        self.network.drop_all()

    def _server_is_back(self) -> None:
        if self.network.refusing:
            self.clock.restarted()
            self.network.refusing = False
            self.unserved.ends("away")
            self.say("The server is there again.")

    def fail_over(self, seconds: float, *, lag_ms: int) -> None:
        """End the server, and let a replica that lags replace it."""
        self._server_is_away()
        held = self._holders()
        self.server = self._watched(self.server.copy(lag_ms=lag_ms))
        self.server.readonly(is_replica=False)
        self.later(seconds, self._server_is_back)
        self._writes_lost.append((self.loop.now - lag_ms / 1000, self.loop.now))
        self.note_what_is_lost()
        self._blame_what_was_settled_for_nothing(held)
        self._note_what_nobody_holds(held)

    def command(self, *words: str | bytes | int) -> Any:
        """Run a command at once, by a user with all permissions."""
        answers, server = hiredis.Reader(), self.server
        self.witness.caller = ""
        kept = server.max_clients, server.is_loading, server.denied
        server.max_clients, server.is_loading, server.denied = MOST_CLIENTS, False, {}
        session = server.connect(answers.feed)
        session.feed(hiredis.pack_command(words))  # type: ignore[arg-type]
        session.close()
        server.max_clients, server.is_loading, server.denied = kept
        return answers.gets()

    @property
    def counts_kept(self) -> bool:
        """Return whether the server knows all delivery counts, and the journal all uncounted deliveries."""
        return not (self.has_lost_writes or self.has_lost_ends)

    def note_what_is_lost(self) -> None:
        """Find the jobs that the server has lost. The story caused their loss, and no process answers for it."""
        self.has_lost_writes = True
        self._note_which_jobs_are_lost()
        self.witness.begin_anew()

    def _note_which_jobs_are_lost(self) -> None:
        kept = {text(word) for word in self._words_of_jobs()}
        ledger = self.ledger
        ledger.lost |= {job for job in (*ledger.enqueued, *ledger.payloads) if job not in kept}

    def was_accepted(self, job: str, payload: list[tuple[bytes, bytes]], asked_at: float) -> None:
        """Note that a producer got this reply. The server may have lost the job before."""
        self.ledger.enqueued[job] = payload
        if any(until >= asked_at for _, until in self._writes_lost):
            self._note_which_jobs_are_lost()

    def _holders(self) -> dict[tuple[str, int], bytes]:
        """Return the consumer of each pending entry, by stream and entry."""
        return {
            (key, number): row.consumer.name if row.consumer is not None else b""
            for key in (KEYS.stream, KEYS.retry)
            if isinstance(stream := self.server.keys.values.get(key.encode()), Stream)
            and (group := stream.groups.get(GROUP.encode())) is not None
            for number, row in group.pending.values.items()
        }

    def has_lost_what_was_written(self, at: float) -> bool:
        """Return whether the server has lost its writes of that time, heartbeats included."""
        return any(since <= at <= until for since, until in self._writes_lost)

    def unheld_since(self, consumer: str, key: bytes, entry_id: bytes) -> float:
        """Return when the server lost a delivery of a consumer, or minus infinity."""
        return self._unheld.get((consumer, key, entry_id), -inf)

    @property
    def lost_deliveries(self) -> frozenset[tuple[str, str]]:
        """Entry ID and consumer of each delivery that the server has lost while the consumer ran it."""
        return frozenset((text(entry_id), consumer) for consumer, _, entry_id in self._unheld)

    def _note_what_nobody_holds(self, before: Mapping[tuple[str, int], bytes]) -> None:
        """Note the consumers whose deliveries the server has lost, also those with a reply under way."""
        holders = self._holders()
        for (source, number), holder in before.items():
            if holders.get((source, number)) != holder:
                self._unheld[text(holder), source.encode(), id_text(number)] = self.loop.now
        for actor in self.actors.values():
            for key, entry_id in actor.holdings():
                if holders.get((text(key), number_of(entry_id))) != actor.consumer:
                    self._unheld[text(actor.consumer), key, entry_id] = self.loop.now

    def _blame_what_was_settled_for_nothing(self, before: Mapping[tuple[str, int], bytes]) -> None:
        """Note that the server has lost the ends of deliveries.

        On the server these deliveries are pending, but their workers do not run them, and cannot know. If one of them
        was the last delivery of its job, the job becomes a dead letter.
        """
        for (key, number), holder in self._holders().items():
            if before.get((key, number)) == holder:
                continue
            for execution in self._executions_of(key, number):
                self.ledger.blame(execution)

    def _words_of_jobs(self) -> Iterator[bytes]:
        for key in (KEYS.stream, KEYS.retry, KEYS.dead, KEYS.journal):
            for entry_id, flat in self.command("XRANGE", key, "-", "+") or ():
                yield entry_id
                yield from flat
        for key in (KEYS.schedule, KEYS.stream_schedule):
            for member in self.command("ZRANGE", key, 0, -1) or ():
                yield from (job.encode() for job in self.ledger.enqueued if job.encode() in member)

    @property
    def _answers_nobody(self) -> bool:
        return self.network.refusing or self.server_process.closed

    def delete_an_entry(self, which: float) -> None:
        """Delete an entry of the stream, as a third party can."""
        rows = self.command("XRANGE", KEYS.stream, "-", "+")
        if rows and not self._answers_nobody:
            entry_id, flat = rows[int(which * len(rows))]
            self.ledger.lost.add(text(read_metadata(entry_id, pair_up(flat)).job_id))
            self.command("XDEL", KEYS.stream, entry_id)

    def delete_settings(self) -> None:
        """Delete the group settings, as a third party can."""
        if not self._answers_nobody:
            self.command("DEL", KEYS.settings)

    def drop_group(self, source: str) -> None:
        """Destroy the group of the stream, or of its retry stream, as a third party can."""
        if self._answers_nobody:
            return  # there is none
        self.drops.note(source)
        self.has_lost_ends = True
        self.command("XGROUP", "DESTROY", source, GROUP)

    def drop_consumer(self, which: float) -> None:
        """Delete a consumer of the group, as a third party can."""
        rows = self.command("XINFO", "CONSUMERS", KEYS.stream, GROUP)
        if isinstance(rows, list) and rows and not self._answers_nobody:
            consumer = rows[int(which * len(rows))][1]
            self.say(f"It is {text(consumer)}.")
            self.drops.note(KEYS.stream, consumer)
            self.has_lost_ends = True
            self.command("XGROUP", "DELCONSUMER", KEYS.stream, GROUP, consumer)

    def told(self, error: str, consumer: str) -> None:
        """Note that a replica or a worker reports a loss."""
        self.tellings.append(Telling(self.loop.now, error, consumer))

    def limit_clients(self, seconds: float, more: int) -> None:
        """Let the server accept ``more`` clients than it has now, and no others."""
        if self.network.refusing:  # otherwise the present clients could be among those that it refuses
            for role in self.actors:
                self.lose_sight_of(role, seconds)
        server = self.server
        server.max_clients = len(server.sessions) + more
        self.later(seconds, lambda: self._take_all_clients(server))

    def _take_all_clients(self, server: ModelServer) -> None:
        server.max_clients = MOST_CLIENTS

    def load_data(self, seconds: float) -> None:
        """Restart the server, and let it read its data for some time."""
        self.restart_server(LOADS_AFTER_S)
        server = self.server
        server.loading(is_loading=True)
        self.unserved.begins("loading")

        def loaded() -> None:
            server.loading(is_loading=False)
            self.unserved.ends("loading")

        self.later(LOADS_AFTER_S + seconds, loaded)

    def flush(self) -> None:
        """Delete everything, as a third party can."""
        self.server.flush_all()
        self.note_what_is_lost()

    def _let_everybody(self, command: str, *, do: bool) -> None:
        if do:
            self.unserved.ends(command)
            self._allowed_at = self.loop.now
        else:
            self.unserved.denied(command)
        if command == WRITE:
            self.server.lacks_replicas = not do
        elif do:
            self.server.grant("default", command)
        else:
            self.server.revoke("default", command)

    def deny(self, command: str, seconds: float) -> None:
        """Take the permission for a command from all users for some time. With `WRITE`, the server rejects writes."""
        self._let_everybody(command, do=False)
        self.later(seconds, lambda: self._let_everybody(command, do=True))

    def reject_writes(self, seconds: float) -> None:
        """Fill the server's memory."""
        self.server.fill(full=True)
        self.later(seconds, lambda: self.server.fill(full=False))

    # ---- the story

    def run(self, program: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a program of the world's own until it ends."""
        return self.loop.run_until_complete(program())

    def begin(self) -> None:
        """Start all actors, and play all faults at their times."""
        for role in self.actors:
            self.launch(role)
        for step in self.story.steps:
            self.loop.call_when(step.at, self._wait_for, step, context=self.context)

    def _wait_for(self, step: Step) -> None:
        if step.on:
            self._waiting.setdefault(step.on, []).append(step)
        elif (who := self._role_meant_by(step.who, Moment())) is not None:
            self._befall(replace(step, who=who))

    def note(self, kind: str, moment: Moment) -> None:
        """Note an event that a fault may wait for (`tests.simulation.reached`)."""
        self.reached.note(kind, moment)
        for step in self._waiting.pop(kind, ()):
            who = self._role_meant_by(step.who, moment)
            if who is None:
                continue
            if step.kind in OF_NETWORK:  # before the message of this moment is sent
                self._befall(replace(step, who=who))
            else:
                self.loop.call_when(self.loop.now, self._befall, replace(step, who=who), context=self.context)

    def _role_meant_by(self, who: str, moment: Moment) -> str | None:
        meant = {HOLDER: self.witness.tenancy.holder, ITSELF: moment.by, OFFERED_TO: self._offered_to(moment)}
        role = meant.get(who, who).partition("#")[0]
        return role if role in self.actors or not who else None

    def _offered_to(self, moment: Moment) -> str:
        """Return the role of the replica that the lease is offered to, or ''."""
        to = text(moment.said.removeprefix(OFFER))
        return next((one.role for one in self.replicas() if to and one.replica_id == to), "")

    def replicas(self) -> list[Replica]:
        """Return all replicas, dead ones included."""
        return [actor for actor in self.actors.values() if isinstance(actor, Replica)]

    def _befall(self, step: Step) -> None:
        if self.healed:
            return
        fault = FAULTS[step.kind]
        self.say(fault.sentence(step))
        self.troubled_until = max(self.troubled_until, self.loop.now + step.seconds)
        self.befell[step.kind] = self.loop.now
        self.note(f"fault {step.kind}", Moment(step.who))
        fault.effect(self, step)

    def heal(self) -> None:
        """End all faults: continue paused processes, and start missing ones."""
        self.healed = True
        self.troubled_until = self.loop.now
        self.say("Nothing befalls anybody any more.")
        for weather in self.network.weathers():
            weather.calm()
        self.thaw_server()
        self._server_is_back()
        self.server.fill(full=False)
        self.server.loading(is_loading=False)
        self._take_all_clients(self.server)
        self.server.denied.clear()
        self._allowed_at = self.loop.now
        self.server.lacks_replicas = False
        self.unserved.all_end()
        for role, actor in self.actors.items():
            self.network.release(role)
            if actor.process is not None and not actor.process.dead:
                actor.process.resume()
            if actor.supervised:
                self.launch(role)
        self.command("DEL", NAMESPACE.drained)
        self.operate("resume", lambda: self.operators.set_paused(False))

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
