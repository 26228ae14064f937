"""Wakes the reader when something was given back where it is: a read that blocks does not see that."""

from collections.abc import Callable

import anyio

from workers.loop.context import Part, WorkerContext
from workers.protocol.messages import Redelivery
from workers.runtime.notices import Notices, notices_client


class Waking(Part):
    """Listens for notices while the group gives back in place. They are hints: reads end by themselves as well."""

    def __init__(self, context: WorkerContext, wake: Callable[[], None]) -> None:
        super().__init__(context)
        self._wake = wake

    async def run(self) -> None:
        """Listen until cancelled, whenever there is something to listen for."""
        while True:
            if self._is_wanted:
                await self._listen()
            else:
                await self._membership.joined.wait()

    @property
    def _is_wanted(self) -> bool:
        return self._membership.agreement.redelivery is Redelivery.IN_PLACE

    async def _listen(self) -> None:
        keys = self._settings.keys
        client = notices_client(self._settings.redis_url, keys.stream)
        notices = Notices(client)
        try:
            with notices.waking(self._wake, (keys.notes,)):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(notices.run)
                    while self._is_wanted:
                        await self._membership.joined.wait()
                    tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await client.aclose()
