"""A reaper replica connects, registers, and serves the groups whose lease it holds.

Run it by ``reaper run``, or inside a program::

    async with Reaper(settings) as reaper:
        ...
"""

import asyncio
import logging
import os
import secrets
import socket
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskStatus

from reaper.context import ReplicaContext
from reaper.metrics import ReplicaMetrics
from reaper.pipelined import PipelinedClient
from reaper.reasons import count_patterns, worst
from reaper.replicas import GroupReport, Replica
from reaper.settings import ReaperSettings
from reaper.sharing.registry import Registry
from reaper.sharing.tenures import Tenures
from workers.protocol.connection import commands_client
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.server import check_server
from workers.runtime.event_loop import call_in, require_asyncio
from workers.runtime.notices import Notices, notices_client
from workers.runtime.pauses import once_served
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""The longest time for the end of the registration."""
CONNECTIONS = 16
"""Most connections for the work on groups, and for their leases. They are opened when they are needed."""
RECOVERIES, MOST_RECOVERIES = 2, 32
"""Connections for recovery calls, and calls of one pipeline. The replica reads one while the server runs another."""


class Reaper:
    """One replica. It runs until `stop` or a cancellation, and only once."""

    def __init__(self, settings: ReaperSettings) -> None:
        self.settings = settings
        self.host = socket.gethostname()
        self.replica_id = f"{settings.name or self.host}-{os.getpid()}-{secrets.token_hex(3)}"
        self._client = commands_client(settings.redis_url, max_connections=CONNECTIONS)
        self._leases = commands_client(settings.redis_url, max_connections=CONNECTIONS)
        self._listener = notices_client(settings.redis_url, settings.namespace_keys.replicas)
        self._context = ReplicaContext(
            replica_id=self.replica_id,
            settings=settings,
            client=self._client,
            recoveries=PipelinedClient(self._client, connections=RECOVERIES, most=MOST_RECOVERIES),
            reads=PipelinedClient(self._client),
            leases=PipelinedClient(self._leases),
            notices=Notices(self._listener),
        )
        self._tenures = Tenures(self._context)
        self._registry = Registry(self._context, self._tenures, self._replica)
        self._metrics = ReplicaMetrics(self._context, self._tenures, lambda: len(self.denials))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self.is_stopping = False
        """`stop` was called."""
        self.server = ""
        """Product and version of the server. Empty before `run`."""
        self._version = version("stream-reaper")
        self._started_ms = 0
        self._inside = AsyncExitStack()

    @property
    def held(self) -> int:
        """Number of groups whose lease this replica believes to hold. Redis checks the lease at each write."""
        return self._tenures.held

    @property
    def watched(self) -> tuple[str, ...]:
        """The groups that this replica may serve, as ``stream/group``."""
        return self._tenures.names

    def reports(self) -> dict[str, GroupReport]:
        """Return reports of groups that this replica serves, observes or cannot serve, by ``stream/group``."""
        return self._tenures.reports()

    @property
    def has_worked(self) -> bool:
        """Tell whether the replica has registered, and knows the holder of each group that it may hold."""
        has_registered, has_read = self._context.able is not None, self._registry.discovery.found is not None
        return has_registered and has_read and self._tenures.have_answers

    @property
    def denials(self) -> list[str]:
        """Parts of the work that Redis denies now, as ``part: reason``. For any thread."""
        denied = self._tenures.errors().items()
        return (
            self._registry.troubles.denials
            + self._registry.discovery.troubles.denials
            + [f"{group}: {why}" for group, why in denied if meaning_of(why) is Meaning.DENIED]
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve groups until cancelled or stopped, and then hand the leases to other replicas.

        Raises UnreachableError if Redis does not answer at the start, UnsupportedServerError if the server is too old,
        ConfigurationError if the event loop is not asyncio's, and RuntimeError if this instance has run before.
        """
        loop = require_asyncio("a reaper")
        if self._scope is not None:
            raise RuntimeError("cannot run: a Reaper runs once. Make a new one.")
        self._loop = loop
        with anyio.CancelScope() as self._scope:
            if self.is_stopping:
                self._scope.cancel()
            try:
                ask = partial(check_server, self._leases, self.settings.redis_url)
                self.server = await once_served(ask, partial(self._registry.failed, "begin"))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._registry.run)
                    tasks.start_soon(self._registry.discovery.run)
                    tasks.start_soon(self._metrics.run)
                    tasks.start_soon(self._tenures.run)
                    task_status.started()
                if not self.is_stopping:
                    raise RuntimeError("reaper stopped unexpectedly: an internal task was cancelled.")
            finally:
                with anyio.CancelScope(shield=True):
                    await self._farewell()

    async def _farewell(self) -> None:
        """Unregister in bounded time, and close all connections."""
        with anyio.move_on_after(FAREWELL_S):
            await self._registry.leave()
        context = self._context
        for client in (context.recoveries, context.reads, context.leases, self._client, self._leases):
            await client.aclose()
        await self._listener.aclose()

    def stop(self) -> None:
        """End `run`, hand the leases over and return. Before `run`, it prevents the start.

        You can call it from any thread.
        """
        self.is_stopping = True
        if self._loop is not None and self._scope is not None:  # else `run` reads `is_stopping`
            call_in(self._loop, self._scope.cancel)

    async def __aenter__(self) -> Self:
        tasks = await self._inside.enter_async_context(anyio.create_task_group())
        try:
            await tasks.start(self.run)
        except BaseException:
            await self._inside.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.stop()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._inside.__aexit__(kind, error, trace)  # `run` may have failed, and cancelled the block
        await self._inside.aclose()  # so that the error of the block is not in an exception group
        return None

    # ---- registration

    def _replica(self, at_ms: int) -> Replica:
        """Return the heartbeat of this replica at ``at_ms`` of the server's clock."""
        self._started_ms = self._started_ms or at_ms
        reports, numbers = self._tenures.reports().values(), self._tenures.numbers()
        return Replica(
            id=self.replica_id,
            name=self.settings.name or self.host,
            host=self.host,
            pid=os.getpid(),
            version=self._version,
            settings=self._registry.digest,
            started_ms=self._started_ms,
            at_ms=at_ms,
            heartbeat_ms=to_ms(self.settings.heartbeat),
            observe=self.settings.observe,
            terms=self._context.terms,
            server=self.server,
            watched=len(self._tenures.names),
            held=sum(held for _, held in numbers.values()),
            patterns=count_patterns(numbers, reports, at_ms),
            scan=self._registry.discovery.scan,
            groups={report.group: report for report in worst(reports, at_ms)},
        )
