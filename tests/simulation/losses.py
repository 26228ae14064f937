"""The writes that a server has lost, and the promises that no process can keep because of that."""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from tests.simulation.blame import pending_in
from tests.simulation.places import KEYS
from tests.simulation.server.words import entry_id as number_of
from tests.simulation.server.words import id_text
from workers.protocol.messages import text

if TYPE_CHECKING:
    from tests.simulation.world import World

Holders = dict[tuple[str, int], bytes]
"""The consumer of each pending entry, by stream and entry."""


class Losses:
    """The losses of the server of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.of_writes = False
        self.of_ends = False
        """The server has lost settlements."""
        self._written: list[tuple[float, float]] = []
        """The spans of time in which the server has lost its writes."""
        self._unheld: dict[tuple[str, bytes, bytes], float] = {}
        """The time at which the server lost a delivery, by consumer, stream and entry."""

    @property
    def counts_kept(self) -> bool:
        """Return whether the server knows all delivery counts, and the journal all uncounted deliveries."""
        return not (self.of_writes or self.of_ends)

    def holders(self) -> Holders:
        """Return the consumer of each pending entry."""
        return {
            (key, number): row.consumer.name if row.consumer is not None else b""
            for key, number, row in pending_in(self._world.server)
        }

    def note(self, lost_ms: int, held: Holders) -> None:
        """Note that the server has lost its latest writes. ``held`` has the holders before."""
        now = self._world.loop.now
        self._written.append((now - lost_ms / 1000, now))
        self.note_lost_jobs()
        self._blame_what_was_settled_for_nothing(held)
        self._note_what_nobody_holds(held)

    def note_lost_jobs(self) -> None:
        """Find the jobs that the server has lost. The story caused their loss, and no process answers for it."""
        self.of_writes = True
        self._note_which_are_lost()
        self._world.witness.begin_anew()

    def _note_which_are_lost(self) -> None:
        kept = {text(word) for word in self._words_of_jobs()}
        ledger = self._world.ledger
        ledger.lost |= {job for job in (*ledger.enqueued, *ledger.payloads) if job not in kept}

    def was_accepted(self, job: str, payload: list[tuple[bytes, bytes]], asked_at: float) -> None:
        """Note that a producer got this reply. The server may have lost the job before."""
        self._world.ledger.enqueued[job] = payload
        if any(until >= asked_at for _, until in self._written):
            self._note_which_are_lost()

    def include(self, at: float) -> bool:
        """Return whether the server has lost its writes of that time, heartbeats included."""
        return any(since <= at <= until for since, until in self._written)

    def unheld_since(self, consumer: str, key: bytes, entry_id: bytes) -> float:
        """Return when the server lost a delivery of a consumer, or minus infinity."""
        return self._unheld.get((consumer, key, entry_id), -inf)

    @property
    def of_deliveries(self) -> frozenset[tuple[str, str]]:
        """Entry ID and consumer of each delivery that the server has lost while the consumer ran it."""
        return frozenset((text(entry_id), consumer) for consumer, _, entry_id in self._unheld)

    def _note_what_nobody_holds(self, before: Holders) -> None:
        """Note the consumers whose deliveries the server has lost, also those with a reply under way."""
        holders = self.holders()
        for (source, number), holder in before.items():
            if holders.get((source, number)) != holder:
                self._unheld[text(holder), source.encode(), id_text(number)] = self._world.loop.now
        for actor in self._world.actors.values():
            for key, entry_id in actor.holdings():
                if holders.get((text(key), number_of(entry_id))) != actor.consumer:
                    self._unheld[text(actor.consumer), key, entry_id] = self._world.loop.now

    def _blame_what_was_settled_for_nothing(self, before: Holders) -> None:
        """Note that the server has lost the ends of deliveries.

        On the server these deliveries are pending, but their workers do not run them, and cannot know. If one of them
        was the last delivery of its job, the job becomes a dead letter.
        """
        for (key, number), holder in self.holders().items():
            if before.get((key, number)) != holder:
                self._world.blame.entry(key, number)

    def _words_of_jobs(self) -> Iterator[bytes]:
        for key in (KEYS.stream, KEYS.retry, KEYS.dead, KEYS.journal):
            for entry_id, flat in self._world.command("XRANGE", key, "-", "+") or ():
                yield entry_id
                yield from flat
        for key in (KEYS.schedule, KEYS.stream_schedule):
            for member in self._world.command("ZRANGE", key, 0, -1) or ():
                yield from (job.encode() for job in self._world.ledger.enqueued if job.encode() in member)
