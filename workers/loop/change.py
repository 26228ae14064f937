"""Wakes whoever waits for the next change of something. Costs next to nothing where nobody waits."""

import asyncio


class Change:
    """Check your condition, wait for a change where it does not hold yet, and check again."""

    def __init__(self) -> None:
        self._awaited: asyncio.Event | None = None

    async def wait(self) -> None:
        """Wait until the next `notify`."""
        if self._awaited is None:
            self._awaited = asyncio.Event()
        await self._awaited.wait()

    def notify(self) -> None:
        """Wake all who wait now."""
        if self._awaited is not None:
            self._awaited.set()
            self._awaited = None
