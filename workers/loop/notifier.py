"""Wakes whoever waits for the next change of something. Costs next to nothing where nobody waits."""

import asyncio


class Notifier:
    """Check your condition, wait for a change where it does not hold yet, and check again."""

    def __init__(self) -> None:
        self.awaited: asyncio.Event | None = None
        """None = nobody waits. Who tells of changes all the time looks here first."""

    async def wait(self) -> None:
        """Wait until the next `notify`."""
        if self.awaited is None:
            self.awaited = asyncio.Event()
        await self.awaited.wait()

    def notify(self) -> None:
        """Wake all who wait now."""
        if self.awaited is not None:
            self.awaited.set()
            self.awaited = None
