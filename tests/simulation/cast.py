"""The actors of the world, which run product code: producers, both kinds of workers, replicas and operators."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from reaper.drill.promises import Execution
from reaper.operations.drain import drain
from reaper.operations.groups import forget, set_paused
from reaper.operations.ready_again import ReadyAgain
from reaper.service import Reaper
from reaper.settings import GroupSettings, ReaperSettings
from tests.simulation import plays
from tests.simulation.loop import Process
from tests.simulation.patience import block_ms
from tests.simulation.places import GROUP, KEYS, NAMESPACE, STREAM, URL
from tests.simulation.story import IN_PLACE, NewJob, Setting
from tests.support.paced import PacedSettings
from workers.loop.dispatch import Handlers
from workers.loop.heartbeat import End
from workers.loop.in_flight import Delivery, Stage
from workers.loop.membership import REFRESH_S, REGISTRATION_SLACK_S
from workers.loop.reporting import EVENTS
from workers.process import WorkerProcess
from workers.producer import Producer
from workers.protocol.connection import commands_client, reader_client
from workers.protocol.errors import StreamReaperError
from workers.protocol.keys import RETURNED_CONSUMER
from workers.protocol.messages import RecoveryMode, Redelivery, pair_up, read_metadata, text
from workers.runtime.callbacks import Callbacks, Report
from workers.runtime.event_loop import require_asyncio
from workers.settings import WorkerSettings

if TYPE_CHECKING:
    from tests.simulation.world import World

AGAIN_S = 1.0
"""Seconds until an actor tries again."""
UNNOTICED_PART = 0.35
"""The longest outage that is no gap, in visibility timeouts that were in force then."""
SCANS_PART, FULL_SCANS_PART = 1 / 8, 0.5
"""How often replicas scan here at least, and scan fully, in visibility timeouts."""
REGISTERED_S = REFRESH_S + REGISTRATION_SLACK_S
"""For so long the registration of a worker lasts."""
REGISTRATIONS = 3
"""Registrations within one lease."""


class Actor:
    """A role, and the process that plays it now."""

    supervised = True
    """Started again after each end."""
    goes_by_mode = False
    """It ends, and perhaps starts again, when the recovery mode is switched."""

    def __init__(self, world: "World", role: str) -> None:
        self.world = world
        self.role = role
        self.process: Process | None = None
        self.incarnation = 0
        self.again_after_s: float | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a process should play the role now."""
        return True

    async def run(self, process: Process) -> None:
        """Play the role, as ``process``."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Ask the process to end."""

    @property
    def consumer(self) -> bytes:
        """Its name in the group, or empty if it is not a consumer."""
        return b""

    def in_hand(self) -> list[Execution]:
        """Return the executions that would end with the process."""
        return self.world.ledger.running_in(self.process.name) if self.process else []

    def lives_for_s(self, proven: float) -> float:  # noqa: ARG002
        """Return for how long it may be silent since an instant of the story."""
        return 0.0

    def proof_of(self, key: bytes, entry_id: bytes) -> float | None:  # noqa: ARG002
        """Return the time of the last heartbeat of a delivery that counts, in seconds of the story."""
        return None

    def robbed(self, key: bytes, entry_id: bytes, holder: bytes) -> Iterator[str]:  # noqa: ARG002
        """Yield a complaint if ``holder`` ('' = no consumer) now owns a delivery that the process may rightly keep."""
        yield from ()

    def holdings(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key of the stream and the entry ID of each delivery that the process believes to own."""
        yield from ()


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


# ---- producers


class Producers(Actor):
    """Enqueues each job of the story, again and again until Redis has accepted it."""

    supervised = False

    def __init__(self, world: "World", role: str) -> None:
        super().__init__(world, role)
        self.left = len(world.story.jobs)

    async def run(self, process: Process) -> None:  # noqa: ARG002
        async with Producer(STREAM, URL) as producer, asyncio.TaskGroup() as tasks:
            for job in self.world.story.jobs:
                tasks.create_task(self._enqueue(producer, job))

    async def _enqueue(self, producer: Producer, job: NewJob) -> None:
        payload: dict[Any, Any] = {b"number": b"%d" % job.number, plays.FIELD: plays.written(job.play)}
        await asyncio.sleep(job.at)
        while True:
            asked_at = self.world.loop.now
            try:
                if job.bare:
                    job_id = text(await producer._client.xadd(STREAM, payload))
                else:
                    job_id = await producer.enqueue(payload, job_id=job.name, delay=job.delay, timeout=job.timeout)
            except (RedisError, OSError, StreamReaperError) as error:
                self.world.say(f"{job.name} is not enqueued: {error}")
                if job.bare:
                    break  # unknown, and a second entry would be another job
                await asyncio.sleep(AGAIN_S)
            else:
                self.world.was_accepted(job_id, list(payload.items()), asked_at)
                break
        self.left -= 1


# ---- workers of ours


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
            if one.proven <= self.world.unheld_since(worker.consumer, key, entry_id):
                continue  # the server has lost this delivery
            if sentence := self._early(one.proven):
                yield f"I2: job {one.id} was taken from {process.name}, {sentence}"

    def _early(self, proven: float) -> str:
        """Say why a delivery that was ``proven`` last at that instant may not be taken yet; '' = it may be.

        The server's clock may have been set ahead since, which makes a delivery look older. The server may also have
        been away for a while. Both together may take at most a third of its time from a live worker, or of a longer
        timeout that was in force meanwhile.
        """
        world, lives_by_s = self.world, self.lives_for_s(proven)
        silent_s = world.loop.now - proven  # its own clock may have stood still meanwhile
        served_s = silent_s - world.unserved.seconds_since(proven)
        seems_s = silent_s + world.clock.set_ahead_since_s(proven)
        unnoticed_s = UNNOTICED_PART * max(lives_by_s, world.longest_visibility_since(proven))
        if served_s >= lives_by_s - unnoticed_s and seems_s >= lives_by_s:
            return ""
        if world.has_lost_what_was_written(proven) and silent_s >= lives_by_s / 2:
            return ""  # the server knows an older heartbeat
        return (
            f"which was silent for {silent_s:.3f} s, could be served for {served_s:.3f} s of these, and may be silent "
            f"for {lives_by_s:g} s"
        )

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


# ---- bare workers

CLAIMED_MS = 10**9
"""A bare worker claims entries that are ready in place, which look idle for this long."""


class BareWorker(Actor):
    """A worker as in the documentation, which reads, runs and acknowledges one job at a time."""

    async def run(self, process: Process) -> None:
        client = reader_client(URL)
        while True:
            try:
                for key in (STREAM, KEYS.retry):
                    try:
                        await client.xgroup_create(key, GROUP, "0", mkstream=True)
                    except ResponseError as error:
                        if "BUSYGROUP" not in str(error):
                            raise
                while True:
                    await self._once(client, process)
            except (RedisError, OSError):
                await client.connection_pool.disconnect()
                await asyncio.sleep(AGAIN_S)

    async def _once(self, client: Redis, process: Process) -> None:
        reply = await client.execute_command(
            "XREADGROUP",
            "GROUP",
            GROUP,
            process.name,
            "COUNT",
            1,
            "BLOCK",
            block_ms(self.world.story.setting),
            *(("CLAIM", CLAIMED_MS) if self.world.story.setting.redelivery == IN_PLACE else ()),
            "STREAMS",
            STREAM,
            KEYS.retry,
            ">",
            ">",
        )
        read = [(source, *entry) for source, entries in reply or () for entry in entries]
        for number, (source, entry_id, flat, *told) in enumerate(read):
            if told and told[0] < 0:  # the server's clock was set back, and another consumer has the entry
                words = ("XCLAIM", source, GROUP, RETURNED_CONSUMER, 0, entry_id, "RETRYCOUNT", told[1], "JUSTID")
                await client.execute_command(*words)
                continue
            execution = _execution(entry_id, flat)
            waiting = [_execution(*later[1:3]) for later in read[number + 1 :]]
            if await self._play(process, execution, flat, waiting):
                try:
                    async with client.pipeline(transaction=True) as together:
                        together.execute_command("XACK", source, GROUP, entry_id)
                        if source == KEYS.retry.encode():
                            together.execute_command("XDEL", source, entry_id)
                        await together.execute()
                except (RedisError, OSError):  # it does not try again
                    self.world.ledger.blame(execution)
                    raise

    async def _play(self, process: Process, execution: Execution, flat: Any, waiting: Sequence[Execution]) -> bool:
        ledger = self.world.ledger
        own = [pair for pair in pair_up(flat) if not pair[0].startswith(b"reaper.")]
        ledger.payloads.setdefault(execution.job, own)
        act = ledger.start(execution, process.name, plays.read(dict(own)[plays.FIELD]))
        done = act.verb in (plays.OK, plays.EXTEND, plays.SWALLOW, plays.BLOCK)
        if not done or act.seconds > self.world.story.setting.visibility_s * 0.2:
            # No heartbeat comes for it, nor for the entries that wait behind it. The timeout may be shortened.
            for without_heartbeat in (execution, *waiting):
                ledger.blame(without_heartbeat)
        try:
            if act.verb != plays.HANG:
                await asyncio.sleep(act.seconds)
            if act.verb == plays.KILL:
                self.world.say(f"A job kills {process.name}.")
                self.world.kill(self.role, again_after_s=2.0, by=execution)
                await asyncio.get_running_loop().create_future()
            if done:
                ledger.complete(execution)
            return done
        finally:
            ledger.leave(execution, process.name)


def _execution(entry_id: bytes, flat: Any) -> Execution:
    metadata = read_metadata(entry_id, pair_up(flat))
    return Execution(text(metadata.job_id), metadata.generation)


# ---- replicas


class Replica(Actor):
    """`Reaper`."""

    goes_by_mode = True

    def __init__(self, world: "World", role: str) -> None:
        super().__init__(world, role)
        setting = world.story.setting
        self.settings: ReaperSettings = PacedSettings(
            redis_url=URL,
            name=role,
            groups=(GroupSettings(stream=STREAM, group=GROUP),),
            visibility_timeout=timedelta(seconds=setting.visibility_s),
            max_deliveries=setting.max_deliveries,
            redelivery=Redelivery(setting.redelivery),
            lease_ttl=timedelta(seconds=setting.lease_s),
            full_scan_interval=timedelta(seconds=setting.visibility_s * FULL_SCANS_PART),
            registration_interval=timedelta(seconds=setting.longest_lease_s / REGISTRATIONS),
            heartbeat_interval=timedelta(seconds=setting.visibility_s / 4),
            journal=setting.journal,
            journal_maxlen=1_000_000,
        )
        self.reaper: Reaper | None = None

    async def run(self, process: Process) -> None:  # noqa: ARG002
        self.reaper = Reaper(self.settings)
        await self.reaper.run()

    @property
    def is_wanted(self) -> bool:
        return not self.world.recovers_itself

    @property
    def replica_id(self) -> str:
        """The replica's ID, or '' before it has begun."""
        return self.reaper.replica_id if self.reaper is not None else ""

    @property
    def serves(self) -> bool:
        """Whether it believes that it holds the lease, and watches the group."""
        return self.reaper is not None and self.reaper.held > 0

    async def stop(self) -> None:
        if self.reaper is not None:
            self.reaper.stop()

    def change_settings(self, changes: Mapping[str, Any]) -> None:
        """Use other settings from the next start on."""
        values = self.settings.model_dump(exclude_unset=True) | dict(changes)
        values["groups"] = self.settings.groups
        self.settings = PacedSettings(**values)


# ---- operators


class Operators:
    """The actions of people on the command line."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def set_paused(self, paused: bool) -> None:
        """Pause recovery of the group, or resume it."""
        client = commands_client(URL)
        try:
            await set_paused(client, KEYS, paused)
        finally:
            await client.aclose()

    async def brake(self, seconds: float) -> None:
        """Pause recovery for some time."""
        await self.set_paused(True)
        await asyncio.sleep(seconds)
        while True:  # the operator who paused recovery resumes it for certain
            try:
                return await self.set_paused(False)
            except (RedisError, StreamReaperError, OSError):
                await asyncio.sleep(1)

    async def drain(self, replica_id: str, seconds: float) -> None:
        """Let a replica hand its groups over, and take none for some time."""
        client = commands_client(URL)
        try:
            await drain(client, NAMESPACE, replica_id, round(seconds * 1000))
        finally:
            await client.aclose()

    async def forget(self) -> None:
        """Remove the keys of the group. Rejected while a replica or workers serve it."""
        client = commands_client(URL)
        try:
            await forget(client, KEYS, namespace=NAMESPACE.namespace)
        finally:
            await client.aclose()
        self._world.drops.forgotten()
        self._world.has_lost_writes = True  # the journal and the counters

    async def redrive_all(self) -> None:
        """Redrive all dead letters."""
        client = commands_client(URL)
        try:
            rows: Any = await client.xrange(KEYS.dead)
            async for _ in ReadyAgain(client, KEYS).redrive([text(entry_id) for entry_id, _ in rows]):
                pass
        finally:
            await client.aclose()
