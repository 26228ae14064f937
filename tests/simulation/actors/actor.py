"""A role of the world, and the process that plays it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reaper.drill.promises import Execution
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

AGAIN_S = 1.0
"""Seconds until an actor tries again."""


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
