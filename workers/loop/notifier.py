"""Wakes tasks that wait for the next change. Without waiting tasks a notification is nearly free."""

import asyncio


class Notifier:
    """Check your condition, wait for a change if it does not hold, and check again."""

    def __init__(self) -> None:
        self.awaited: asyncio.Event | None = None
        """None without waiting tasks. A caller that notifies often checks this first."""

    async def wait(self) -> None:
        """Wait until the next `notify`."""
        if self.awaited is None:
            self.awaited = asyncio.Event()
        await self.awaited.wait()

    def notify(self) -> None:
        """Wake all waiting tasks."""
        if self.awaited is not None:
            self.awaited.set()
            self.awaited = None
