"""Deliveries that third parties delete from Redis, with a consumer or with the group, and the duty to report them.

Decision 12 names the process that reports a delivery. If no process can know of a delivery, its job is in
`Ledger.lost`, and the judge does not ask for it. The judge asks for all other jobs.
"""

from collections.abc import Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from reaper.drill.promises import Execution
from tests.simulation.actors.actor import Actor
from tests.simulation.actors.replica import FULL_SCANS_PART
from tests.simulation.places import GROUP, KEYS
from tests.simulation.plays import Dropped
from tests.simulation.server.streams import Group, Stream
from tests.simulation.server.words import entry_id as number_of
from workers.protocol.keys import is_worker
from workers.protocol.messages import pair_up, read_metadata, text

if TYPE_CHECKING:
    from tests.simulation.world import World

PROVEN_LATELY = 2 / 3
"""A worker restores a deleted delivery within this part of the visibility timeout after its last heartbeat."""


class Drops:
    """Notes deleted deliveries, and finds those that no process can know of."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._unseen: dict[str, Dropped] = {}
        """Deliveries deleted with a third-party consumer, by job, until a replica scans the group."""
        self._foreign: set[str] = set()
        """Jobs deleted with a third-party consumer. Only a holder that saw them knows of them."""
        self._holder_began_at = -inf

    def holder_begins(self) -> None:
        """Note that a holder begins to watch the group. It does not know deliveries that were deleted before."""
        self._holder_began_at = self._world.loop.now
        self._world.ledger.lost |= self._foreign
        self._foreign.clear()

    def replica_looks(self) -> None:
        """Note that a replica reads the consumers. It believes that a consumer that exists again has settled all."""
        unseen, self._unseen = self._unseen, {}
        for job, dropped in unseen.items():
            group = self._group(dropped.place[0])
            if group is not None and dropped.consumer.encode() in group.consumers:
                self._world.ledger.lost.add(job)

    def note(self, source: str, *consumer: bytes) -> None:
        """Note the pending deliveries of ``consumer``, or of all consumers.

        Their jobs may run again at once. If they are lost, a process has to report them.
        """
        world = self._world
        holder = self._holder(*consumer)
        for entry_id, _, idle_ms, _ in self._pending(source, *consumer):
            for _, flat in world.command("XRANGE", source, entry_id, entry_id):
                metadata = read_metadata(entry_id, pair_up(flat))
                job = text(metadata.job_id)
                proven = holder.proof_of(source.encode(), entry_id) if holder else None
                dropped = world.ledger.dropped[job] = Dropped(
                    world.loop.now,
                    text(consumer[0]) if consumer else "",
                    holder.process.name if holder and holder.process else "",
                    proven or 0.0,
                    (source.encode(), entry_id),
                )
                if consumer and holder is None:
                    self._unseen[job] = dropped
                    if not is_worker(consumer[0]):
                        self._foreign.add(job)
                seen_ms = min(idle_ms, world.witness.claimed_ago_s(source.encode(), entry_id) * 1000)
                if self._is_nobodys_to_know(seen_ms, *consumer) or (holder and proven is None):
                    world.ledger.lost.add(job)
                elif holder and proven is not None:
                    left_s = proven + PROVEN_LATELY * holder.lives_for_s(proven) - world.loop.now
                    world.later(max(0.0, left_s), partial(self._look_whether_proven, job, dropped, holder))
                world.ledger.blame(Execution(job, metadata.generation))

    def has_unheld(self, process: str) -> bool:
        """Return whether a process runs a job that only it knows, because its consumer was deleted.

        If this job was quarantined, it counts as settled, and the next one is released next to it.
        """
        return any(self._held_by(process))

    def ended(self, process: str) -> None:
        """Note that a process has ended with the deliveries that it did not restore.

        If its consumer exists again, because it read, no trace of the deletion is left.
        """
        for job, dropped in self._held_by(process):
            group = self._group(dropped.place[0])
            if group is not None and dropped.consumer.encode() in group.consumers:
                self._world.ledger.lost.add(job)

    def rejected(self, process: str, job: str, *, settles: bool = False) -> None:
        """Note that a script rejected a job of a process.

        Only heartbeats restore deleted deliveries. A settlement before the next heartbeat is rejected, and journaled.
        Heartbeats restore a delivery only if its settlement would delete the entry (extend.lua).
        """
        for name, dropped in self._held_by(process):
            setting = self._world.story.setting
            is_certain = dropped.place[0] == KEYS.retry.encode() or (
                setting.redelivery == "stream" and not self._world.recovers_itself
            )
            if name == job and (settles or not is_certain):
                self._world.ledger.lost.add(job)

    def forgotten(self) -> None:
        """Note that an operator removed the keys of the group, and with them registrations of deleted consumers."""
        for job, dropped in self._world.ledger.dropped.items():
            if dropped.consumer and self._world.witness.is_nowhere(job):
                self._world.ledger.lost.add(job)

    def _look_whether_proven(self, job: str, dropped: Dropped, holder: Actor) -> None:
        """Note that a worker had no heartbeat of a deleted delivery for so long that it cannot restore it any more."""
        if holder.process is None or holder.process.name != dropped.holder or holder.process.dead:
            return
        if self._world.ledger.dropped[job] is dropped and holder.proof_of(*dropped.place) == dropped.proven:
            self._world.ledger.lost.add(job)

    def _held_by(self, process: str) -> Iterator[tuple[str, Dropped]]:
        """Yield deliveries that were deleted while ``process`` ran them, and are not pending again."""
        for job, dropped in self._world.ledger.dropped.items():
            if dropped.holder == process:
                group = self._group(dropped.place[0])
                if group is None or number_of(dropped.place[1]) not in group.pending:
                    yield job, dropped

    def _group(self, source: bytes) -> Group | None:
        stream = self._world.server.keys.values.get(source)
        return stream.groups.get(GROUP.encode()) if isinstance(stream, Stream) else None

    def _holder(self, *consumer: bytes) -> Actor | None:
        """Return the live stream-reaper worker of the consumer."""
        for actor in self._world.actors.values():
            if actor.consumer and actor.consumer in consumer and self._world.alive(actor.role):
                return actor
        return None

    def _pending(self, source: str, *consumer: bytes) -> list[tuple[bytes, bytes, int, int]]:
        rows = self._world.command("XPENDING", source, GROUP, "-", "+", 100_000, *consumer)
        return rows if isinstance(rows, list) else []

    def _is_nobodys_to_know(self, idle_ms: float, *consumer: bytes) -> bool:
        """Return whether no process can report a deleted delivery that was idle for so long.

        A new group without the marker consumer looks like the deleted one, so no process notices the deletion.
        If a registered worker loses its consumer, the journal reports the consumer (maintain_group.lua). Other
        deliveries, and all of them without a journal, are reported by the holder alone, if it can have seen them in
        a full scan (decision 12). After a step back of the clock no process reports them, because the time of the
        last heartbeat is in the future.
        """
        world = self._world
        if not world.command("EXISTS", KEYS.settings) or not (
            consumer or world.command("HGET", KEYS.settings, "marked")
        ):
            return True
        if world.loop.now - world.clock.set_back_at < max(world.visibilities):
            return True
        is_told_of = world.story.setting.journal and all(
            world.command("HEXISTS", KEYS.settings, b"registration:" + name) for name in consumer
        )
        is_seen = "xpending" not in world.server.denied  # by holders, in full scans
        seen_ms = world.story.setting.visibility_s * 1000 * FULL_SCANS_PART
        idle_ms = min(idle_ms, (world.loop.now - self._holder_began_at) * 1000)
        if not consumer:  # a group: live workers report the jobs that they run, and the holder those that it has seen
            return not is_seen
        return not is_told_of and (world.recovers_itself or not is_seen or idle_ms < seen_ms)
