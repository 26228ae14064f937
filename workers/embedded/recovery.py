"""Embedded recovery as a worker has it: where it looks for stalled deliveries, and what it does for the whole group."""

import anyio

from workers.embedded.autoclaim import Autoclaim
from workers.embedded.upkeep import Upkeep
from workers.loop.context import WorkerContext
from workers.runtime.contact import Contact, grace_of_workers

STARTING = "starting"


class EmbeddedRecovery:
    """The parts of it. `run` must be running."""

    def __init__(self, context: WorkerContext) -> None:
        self._contact = Contact(context.commands, grace_of_workers())
        self._upkeep = Upkeep(context, self._contact)
        self.stalled = Autoclaim(context, self._contact, self._upkeep.suspects.wake)
        """What the reader asks for deliveries that stalled."""

    def was_not_served(self) -> None:
        """Note that at our start the server did not serve us: then nor, perhaps, those who hold what looks stalled."""
        self._contact.denials.denied(STARTING)

    async def run(self) -> None:
        """Look after contact and group until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._contact.run)
            tasks.start_soon(self._upkeep.run)
