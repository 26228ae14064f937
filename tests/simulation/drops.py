"""What others have made Redis forget, by deleting a consumer or a group: who may know of it, and when nobody can.

Decision 12 says who tells. What nobody can know is taken from the jobs that are asked for (`Ledger.lost`),
and nothing else is.
"""

from collections.abc import Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from reaper.drill.promises import Execution
from tests.simulation.cast import FULL_SCANS_PART, Actor
from tests.simulation.places import GROUP, KEYS
from tests.simulation.plays import Dropped
from tests.simulation.server.streams import Group, Stream
from tests.simulation.server.words import entry_id as number_of
from workers.protocol.keys import is_worker
from workers.protocol.messages import pair_up, read_metadata, text

if TYPE_CHECKING:
    from tests.simulation.world import World

PROVEN_LATELY = 2 / 3
"""In so many parts of its visibility timeout since a proof of life a worker takes back what has vanished."""


class Drops:
    """Notes what is dropped, and finds out what nobody can know of."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._unseen: dict[str, Dropped] = {}
        """By job: what went with a consumer that is none of ours, and no replica has looked since."""
        self._foreign: set[str] = set()
        """Jobs that went with a consumer that is none of ours: nobody but the holder that saw it knows of them."""
        self._holder_began_at = -inf

    def holder_begins(self) -> None:
        """Note that a holder begins to watch the group: it knows nothing of what went with consumers before."""
        self._holder_began_at = self._world.loop.now
        self._world.ledger.lost |= self._foreign
        self._foreign.clear()

    def replica_looks(self) -> None:
        """Note that a replica looks who is there: to everybody, a consumer that is there again has settled all."""
        unseen, self._unseen = self._unseen, {}
        for job, dropped in unseen.items():
            group = self._group(dropped.place[0])
            if group is not None and dropped.consumer.encode() in group.consumers:
                self._world.ledger.lost.add(job)

    def note(self, source: str, *consumer: bytes) -> None:
        """Note what is pending, for ``consumer`` or for all.

        It may run again at once, and if it is lost, somebody has to tell.
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
                    left_s = proven + PROVEN_LATELY * holder.lives_by_s - world.loop.now
                    world.later(max(0.0, left_s), partial(self._look_whether_proven, job, dropped, holder))
                world.ledger.blame(Execution(job, metadata.generation))

    def has_unheld(self, process: str) -> bool:
        """Tell whether a process has something in hand that nobody else knows of since its consumer was deleted.

        A quarantined job of that kind is taken for settled, and the next one is released beside it.
        """
        return any(self._held_by(process))

    def ended(self, process: str) -> None:
        """Note that a process has ended: what it has not held again went with it.

        Where its consumer is there again, by a read of its own, nothing tells that it was ever deleted.
        """
        for job, dropped in self._held_by(process):
            group = self._group(dropped.place[0])
            if group is not None and dropped.consumer.encode() in group.consumers:
                self._world.ledger.lost.add(job)

    def refused(self, process: str, job: str, *, settles: bool = False) -> None:
        """Note that a process is told that a job is not its own.

        Only heartbeats take back what has vanished. A settlement before the next one is rejected, and journaled so.
        Heartbeats take it back only where its entry would be deleted by whoever settled it (extend.lua).
        """
        for name, dropped in self._held_by(process):
            setting = self._world.story.setting
            is_certain = dropped.place[0] == KEYS.retry.encode() or (
                setting.redelivery == "stream" and not self._world.recovers_itself
            )
            if name == job and (settles or not is_certain):
                self._world.ledger.lost.add(job)

    def forgotten(self) -> None:
        """Note that an operator had the group forgotten: the words of those whose consumers are missing, too."""
        for job, dropped in self._world.ledger.dropped.items():
            if dropped.consumer and self._world.witness.is_nowhere(job):
                self._world.ledger.lost.add(job)

    def _look_whether_proven(self, job: str, dropped: Dropped, holder: Actor) -> None:
        """Note that a worker was not able to prove for too long that it runs what was dropped: it cannot any more."""
        if holder.process is None or holder.process.name != dropped.holder or holder.process.dead:
            return
        if self._world.ledger.dropped[job] is dropped and holder.proof_of(*dropped.place) == dropped.proven:
            self._world.ledger.lost.add(job)

    def _held_by(self, process: str) -> Iterator[tuple[str, Dropped]]:
        """Yield what went with a consumer while ``process`` ran it, and is not pending again."""
        for job, dropped in self._world.ledger.dropped.items():
            if dropped.holder == process:
                group = self._group(dropped.place[0])
                if group is None or number_of(dropped.place[1]) not in group.pending:
                    yield job, dropped

    def _group(self, source: bytes) -> Group | None:
        stream = self._world.server.keys.values.get(source)
        return stream.groups.get(GROUP.encode()) if isinstance(stream, Stream) else None

    def _holder(self, *consumer: bytes) -> Actor | None:
        """Return the worker of ours that lives, and whose consumer it is."""
        for actor in self._world.actors.values():
            if actor.consumer and actor.consumer in consumer and self._world.alive(actor.role):
                return actor
        return None

    def _pending(self, source: str, *consumer: bytes) -> list[tuple[bytes, bytes, int, int]]:
        rows = self._world.command("XPENDING", source, GROUP, "-", "+", 100_000, *consumer)
        return rows if isinstance(rows, list) else []

    def _is_nobodys_to_know(self, idle_ms: float, *consumer: bytes) -> bool:
        """Tell whether nobody can tell of what was idle for so long.

        Nobody can where nothing tells one group from another. Of a consumer whose worker is registered the journal
        tells that it is gone (maintain_group.lua); of another one's deliveries, or without a journal, the holder alone
        tells, if a full scan of its own can have seen them (decision 12). Nobody tells where the clock was set back
        just before: what a worker then says of when it has proved its life lies in the future, and counts for nothing.
        """
        world = self._world
        if not world.command("EXISTS", KEYS.agreement) or not (
            consumer or world.command("HGET", KEYS.agreement, "marked")
        ):
            return True
        if world.loop.now - world.clock.set_back_at < max(world.visibilities):
            return True
        is_told_of = world.story.setting.journal and all(
            world.command("HEXISTS", KEYS.agreement, b"member:" + name) for name in consumer
        )
        is_seen = "xpending" not in world.server.denied.get("default", ())  # by holders, in full scans
        seen_ms = world.story.setting.visibility_s * 1000 * FULL_SCANS_PART
        idle_ms = min(idle_ms, (world.loop.now - self._holder_began_at) * 1000)
        if not consumer:  # a group: whoever has its jobs in hand tells while it lives, and a holder that has seen them
            return not is_seen
        return not is_told_of and (world.recovers_itself or not is_seen or idle_ms < seen_ms)
