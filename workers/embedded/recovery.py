"""Embedded recovery as a worker has it: where it looks for stalled deliveries, and what it does for the whole group."""

from workers.embedded.autoclaim import Autoclaim
from workers.embedded.upkeep import Upkeep
from workers.loop.context import WorkerContext


class EmbeddedRecovery:
    """The parts of it. `run` must be running."""

    def __init__(self, context: WorkerContext) -> None:
        self._upkeep = Upkeep(context)
        self.stalled = Autoclaim(context, self._upkeep.quarantine.wake)
        """What the reader asks for deliveries that stalled."""

    async def run(self) -> None:
        """Look after the group until cancelled."""
        await self._upkeep.run()
