"""A stream-reaper worker, and the deliveries that may not be taken from it."""

from collections.abc import Coroutine, Iterator
from datetime import timedelta
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

from reaper.drill.promises import Execution
from tests.simulation import plays
from tests.simulation.actors.actor import Actor
from tests.simulation.loop import Process
from tests.simulation.places import GROUP, KEYS, STREAM, URL
from tests.simulation.story import Setting
from workers.loop.dispatch import Handlers
from workers.loop.heartbeat import End
from workers.loop.in_flight import Delivery, Stage
from workers.loop.membership import REFRESH_S, REGISTRATION_SLACK_S
from workers.loop.reporting import EVENTS
from workers.process import WorkerProcess
from workers.protocol.keys import RETURNED_CONSUMER
from workers.protocol.messages import RecoveryMode, Redelivery
from workers.runtime.callbacks import Callbacks, Report
from workers.runtime.event_loop import require_asyncio
from workers.settings import WorkerSettings

if TYPE_CHECKING:
    from tests.simulation.world import World

UNNOTICED_PART = 0.35
"""The longest pause that may be no gap, in visibility timeouts that were in force then."""
REGISTERED_S = REFRESH_S + REGISTRATION_SLACK_S
"""For so long the registration of a worker lasts."""


@lru_cache(maxsize=8)  # reading the environment for each worker costs more than all that a short story does
def worker_settings(setting: Setting, name: str, recovery: RecoveryMode) -> WorkerSettings:
    """Return the settings of a worker of a story."""
    knows = setting.own_timeout or recovery is RecoveryMode.EMBEDDED
    return WorkerSettings(
        redis_url=URL,
        stream=STREAM,
        group=GROUP,
        name=name,
        concurrency=setting.concurrency,
        visibility_timeout=timedelta(seconds=setting.visibility_s) if knows else None,
        max_deliveries=setting.max_deliveries if knows else None,
        redelivery=Redelivery(setting.redelivery) if knows else None,
        recovery=recovery,
        backoff_cap=timedelta(seconds=setting.visibility_s),
        drain_timeout=timedelta(seconds=setting.visibility_s / 3),
        delete_settled=setting.delete_settled,
        journal=setting.journal,
        journal_maxlen=1_000_000,
    )


class OurWorker(Actor):
    """`WorkerProcess`, with a handler that plays."""

    goes_by_mode = True

    def __init__(self, world: "World", role: str) -> None:
        super().__init__(world, role)
        self._worker: WorkerProcess | None = None

    @property
    def _settings(self) -> WorkerSettings:
        setting = self.world.story.setting
        return worker_settings(setting, self.role if setting.named else "", RecoveryMode(self.world.recovery))

    async def run(self, process: Process) -> None:
        world = self.world

        def kill(execution: Execution, *, fresh: bool) -> None:
            world.say(f"{execution.job} kills {process.name}.")
            self._blame_last_deliveries(fresh=fresh)
            world.kill(self.role, again_after_s=2.0, by=execution)

        require_asyncio("a worker")  # as `Worker.run` does
        stage = plays.Stage(world.ledger, process, kill, lambda seconds: world.block(process, seconds))

        def begin(beating: Coroutine[Any, Any, None], _name: str) -> End:
            """Send heartbeats like the thread of a worker. Its gate lets it continue while the event loop blocks."""
            task = process.thread("heartbeat").start(beating)

            async def end() -> None:
                task.cancel()

            return end

        callbacks: Callbacks = Callbacks(EVENTS)
        callbacks.on("error")(self._hear)
        callbacks.on("rejected")(self._hear_rejection)
        self._worker = WorkerProcess(self._settings, Handlers(stage.handle), callbacks, begin)
        await self._worker.run(handle_signals=False, task_status=_UNTOLD)

    async def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    @property
    def consumer(self) -> bytes:
        return self._worker.consumer.encode() if self._worker is not None else b""

    @property
    def is_full(self) -> bool:
        """Whether it has no free slot."""
        return len(self._held()) >= self.world.story.setting.concurrency

    async def _hear(self, report: Report) -> None:
        self.world.told(str(report.facts.get("error", "")), str(report.facts.get("consumer", "")))

    async def _hear_rejection(self, report: Report) -> None:
        if self.process is not None:
            settles = report.facts["verb"] != "extension"
            self.world.drops.rejected(self.process.name, report.facts["job"], settles=settles)

    def proof_of(self, key: bytes, entry_id: bytes) -> float | None:
        for one in self._held():
            if one.raw_entry_id == entry_id and one.source.key.encode() == key:
                return one.proven
        return None

    def in_hand(self) -> list[Execution]:
        return super().in_hand() + [Execution(one.id, one.generation) for one in self._held()]

    def robbed(self, key: bytes, entry_id: bytes, holder: bytes) -> Iterator[str]:
        process, worker = self.process, self._worker
        if process is None or process.closed or worker is None or holder == worker.consumer.encode():
            return
        if holder == RETURNED_CONSUMER.encode():
            return  # a read took it after a step back of the clock, and returned it
        if self.world.witness.caller.startswith(process.name):
            return  # the process itself gave it back
        if self.world.witness.caller.startswith("bare-"):
            return  # a late bare worker acknowledged an entry that was given back in place, without an owner check
        for one in self._held():
            if one.raw_entry_id != entry_id or one.source.key.encode() != key or one.stage is Stage.ENDED:
                continue
            completed = Execution(one.id, one.generation) in self.world.ledger.completions
            if completed and self.world.witness.caller.startswith("worker-"):
                continue  # an earlier holder has completed it, and the first completion wins
            if one.id in self.world.ledger.dropped or one.id in self.world.ledger.lost:
                continue  # a third party deleted it or its payload
            if one.proven <= self.world.losses.unheld_since(worker.consumer, key, entry_id):
                continue  # the server has lost this delivery
            if sentence := self._early(one.proven):
                yield f"I2: job {one.id} was taken from {process.name}, {sentence}"

    def _early(self, proven: float) -> str:
        """Say why a delivery that was ``proven`` last at that instant may not be taken yet; '' = it may be.

        By the server's clock, a delivery must have been silent for its whole timeout, without the gaps that the server
        has to notice.
        """
        world, lives_by_s = self.world, self.lives_for_s(proven)
        silent_s = world.loop.now - proven  # its own clock may have stood still meanwhile
        seems_s = silent_s + sum(by_s for _, by_s in world.clock.steps_since(proven))
        noticed_s = UNNOTICED_PART * max(lives_by_s, world.longest_visibility_since(proven))
        gaps_s = sum(gap_s for gap_s in self._gaps_since(proven) if gap_s > noticed_s)
        if seems_s - gaps_s >= lives_by_s:
            return ""
        if world.losses.include(proven) and silent_s >= lives_by_s / 2:
            return ""  # the server knows an older heartbeat
        return (
            f"which was silent for {silent_s:.3f} s, seemed silent to the server for {seems_s:.3f} s with gaps of "
            f"{gaps_s:.3f} s, and may be silent for {lives_by_s:g} s"
        )

    def _gaps_since(self, since: float) -> Iterator[float]:
        """Yield each time in which no heartbeat could be served, in seconds of the server's clock.

        A step of the clock is a gap, too. In a pause, it makes the pause look longer or shorter.
        """
        steps = self.world.clock.steps_since(since)
        pauses = self.world.unserved.periods_since(since)
        for begun, ended in pauses:
            yield ended - begun + sum(by_s for at, by_s in steps if begun <= at <= ended)
        yield from (by_s for at, by_s in steps if not any(begun <= at <= ended for begun, ended in pauses))

    def holdings(self) -> Iterator[tuple[bytes, bytes]]:
        yield from ((one.source.key.encode(), one.raw_entry_id) for one in self._held())

    def lives_for_s(self, proven: float) -> float:
        """Seconds that it may be silent since ``proven``, by its own settings, as long as its registration lasts.

        After the end of its registration, the group settings apply. Without a registration, it could not register,
        or somebody deleted it. Then its own settings apply for as long as a registration of that instant would last.
        """
        if self._worker is None:
            return 0.0
        own_s = self._worker._context.membership.group_settings.visibility_timeout.total_seconds()
        in_force = self.world.server.keys.values.get(KEYS.settings.encode())
        if not isinstance(in_force, dict):
            return own_s
        word, in_force_ms = in_force.get(b"registration:" + self.consumer), in_force.get(b"visibility_ms")
        lasts = (
            int(word.split(b",")[0]) > self.world.server.now_ms if word else self.world.loop.now < proven + REGISTERED_S
        )
        if lasts or not in_force_ms:
            return own_s
        return min(own_s, int(in_force_ms) / 1000)

    def _held(self) -> list[Delivery]:
        return self._worker.in_hand() if self._worker is not None else []

    def _blame_last_deliveries(self, *, fresh: bool) -> None:
        """Note quarantined jobs that run next to a job which kills the worker, if their last deliveries look alike.

        The quarantined job has begun, and one of the two has run for a visibility timeout (decision 7): the killer,
        if it is ``fresh``, or the quarantined job. A job that was not released keeps its delivery (decision 6). With
        a limit of 1, no job is quarantined.
        """
        if self._worker is None:
            return
        lasted_since = self.world.loop.now - self._worker._context.membership.visibility_s
        least = self.world.story.least_limit  # it may be lowered until the next look
        released = self.world.server.keys.values.get(KEYS.quarantine.encode())
        for one in self._held():
            out = released.get(one.raw_entry_id, b"") if isinstance(released, dict) else b""
            lasted = -inf < one.started <= lasted_since
            has_begun = out.split(b",")[1:2] == [b"%d" % one.times_delivered]
            if one.deliveries >= least and (least == 1 or (has_begun and (fresh or lasted))):
                self.world.ledger.blame(Execution(one.id, one.generation))


class _Untold:
    """A task status that is ignored."""

    def started(self, value: object = None) -> None:
        """Ignore it."""


_UNTOLD: Any = _Untold()
