"""Notes in the ledger which jobs may end with a process, so that they may become dead letters."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from reaper.drill.promises import Execution
from tests.simulation.actors.actor import Actor
from tests.simulation.network import Link
from tests.simulation.places import GROUP, KEYS
from tests.simulation.server import ModelServer
from tests.simulation.server.streams import Pending, Stream
from tests.simulation.server.words import id_text
from workers.protocol.messages import pair_up, read_metadata, text

if TYPE_CHECKING:
    from tests.simulation.world import World


def pending_in(server: ModelServer) -> Iterator[tuple[str, int, Pending]]:
    """Yield the stream, the entry and the row of each pending delivery."""
    for key in (KEYS.stream, KEYS.retry):
        stream = server.keys.values.get(key.encode())
        if isinstance(stream, Stream) and (group := stream.groups.get(GROUP.encode())) is not None:
            for number, row in group.pending.values.items():
                yield key, number, row


class Blame:
    """Blames executions that a fault of the story may end."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def what_is_in_hand(self, role: str) -> None:
        """Note that the jobs of a process may end with it, as far as the other ones see."""
        actor = self._world.actors.get(role)
        if actor is not None:
            for execution in actor.in_hand():
                self._world.ledger.blame(execution)

    def lose_sight_of(self, role: str, seconds: float) -> None:
        """Note that a process looks dead to the other ones for some time, so its jobs may be recovered.

        This holds for the jobs that it runs, and for those that it receives or begins meanwhile, because it asked
        before.
        """
        self.what_is_in_hand(role)
        self._world.ledger.out_of_sight[role] += 1

        def see() -> None:
            self._world.ledger.out_of_sight[role] -= 1
            self.what_is_in_hand(role)

        self._world.later(seconds, see)

    def what_is_handed_out(self, link: Link) -> None:
        """Note that a process which looks dead, or is, gets deliveries by this reply."""
        world, process = self._world, link.process
        if process is None:
            return
        # With one delivery, a job that is read has used it up, and no job is quarantined (decision 7).
        if world.ledger.out_of_sight[process.role] or (process.dead and world.story.least_limit == 1):
            now_ms = world.server.now_ms
            self._pending(lambda row: row.delivered_ms >= now_ms)

    def what_is_left_by(self, actor: Actor) -> None:
        """Note that the jobs which a process runs, and those which it was to receive, end with it."""
        if actor.consumer:
            self._pending(lambda row: row.consumer is not None and row.consumer.name == actor.consumer)

    def _pending(self, is_meant: Callable[[Pending], bool]) -> None:
        for key, number, row in pending_in(self._world.server):
            if is_meant(row):
                self.entry(key, number)

    def entry(self, key: str, number: int) -> None:
        """Blame the execution of a pending entry, if it has a payload."""
        stream = self._world.server.keys.values.get(key.encode())
        if isinstance(stream, Stream) and number in stream.entries:
            flat: Any = stream.entries.values[number][1]
            metadata = read_metadata(id_text(number), pair_up(flat))
            self._world.ledger.blame(Execution(text(metadata.job_id), metadata.generation))
