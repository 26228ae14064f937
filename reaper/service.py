"""A reaper replica connects, registers, takes part in elections and recovers while it leads.

Run it by ``reaper run``, or inside a program::

    async with Reaper(settings) as reaper:
        ...
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Literal, Self, get_args

import anyio
from anyio.abc import TaskStatus

from reaper.election.elector import Elector, EndOfTerm, Term
from reaper.metrics import ReplicaMetrics
from reaper.recovery.beats import Beats
from reaper.recovery.term import TermWork
from reaper.registration import Registration
from reaper.replicas import FOLLOWER, LEADER, Replica
from reaper.settings import ReaperSettings
from workers.protocol.calls.group_load import look_at_group
from workers.protocol.connection import commands_client, reader_client
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, meaning_of_text
from workers.protocol.server_check import check_server
from workers.runtime.beginning import once_served
from workers.runtime.callbacks import Callbacks, CallbackT
from workers.runtime.event_loop import call_in, require_asyncio
from workers.runtime.notices import Notices, notices_client
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

ReaperEvent = Literal["stalled", "recovered", "dead_lettered", "leadership_acquired", "leadership_lost", "error"]
EVENTS: frozenset[str] = frozenset(get_args(ReaperEvent))
FAREWELL_S = 2.0
"""How long leaving the hash of replicas may take at the end, and how long callbacks may."""
CONNECTIONS, CONTROL_CONNECTIONS = 64, 4
"""At most, for the work on groups, and for elections and heartbeats. They are opened as they are needed."""
RELOADABLE = frozenset({"groups", "visibility_timeout", "max_deliveries", "redelivery"})


@cache
def _distribution_version() -> str:
    try:
        return version("stream-reaper")
    except PackageNotFoundError:
        return "unknown"


class Reaper:
    """One replica. It runs until `stop` or a cancellation, and only once.

    Args:
        settings: The groups, the address of Redis and all other settings.
    """

    def __init__(self, settings: ReaperSettings) -> None:
        self.settings = settings
        self.host = socket.gethostname()
        self.replica_id = f"{settings.name or self.host}-{os.getpid()}-{secrets.token_hex(3)}"
        self._keys = settings.namespace_keys
        self._callbacks: Callbacks[str] = Callbacks(EVENTS)
        self._client = commands_client(settings.redis_url, max_connections=CONNECTIONS)
        # renewals have their own connection, so they never wait behind the work of a thousand groups
        home = self._keys.lease
        self._control = commands_client(settings.redis_url, key=home, max_connections=CONTROL_CONNECTIONS)
        self._reader = reader_client(settings.redis_url, key=home, block_ms=to_ms(settings.acquire_retry))
        self._elector = Elector(self._control, self._reader, settings, self.replica_id)
        self._registration = Registration(
            self._control,
            self._keys,
            self._elector,
            self._replica,
            self._heartbeat_s,
        )
        self._beats = Beats(self._client, lambda: self.settings.watched)
        self._listener = notices_client(settings.redis_url, home)
        self._work = TermWork(
            self._client,
            Notices(self._listener),
            settings,
            self._elector,
            self._callbacks,
            self._registration.at_once,
        )
        self._metrics = ReplicaMetrics(
            self._keys.namespace,
            leads=lambda: self.is_leader,
            token=lambda: self._last_token,
            reports=self._work.reports,
            refused=lambda: len(self.refusals),
            look=lambda keys: look_at_group(self._client, keys),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self.is_stopping = False
        """The replica was told to stop."""
        self.server = ""
        """The server's version; '' before `run`."""
        self._started_ms = 0
        self._last_token = 0
        self._inside = AsyncExitStack()

    def on(self, event: ReaperEvent) -> Callable[[CallbackT], CallbackT]:
        """Register an async callback for an event, as in ``@reaper.on("recovered")``. It gets a `Report`.

        Reports come in the order of the replies. Calls overlap, so the order of two events of one job can differ from
        the journal, which has the order of the writes.
        """
        return self._callbacks.on(event)

    @property
    def is_leader(self) -> bool:
        """Tell whether this replica believes that it leads. Redis checks each write by its fence."""
        return self._elector.term is not None

    @property
    def term(self) -> Term | None:
        """The current term, while this replica leads."""
        return self._elector.term

    @property
    def has_registered(self) -> bool:
        """Tell whether the replica has connected to Redis and run its scripts."""
        return self._registration.has_registered

    @property
    def has_worked(self) -> bool:
        """Tell whether the replica has registered and taken part in an election, or leads."""
        return self.has_registered and self._elector.attempts > 0

    @property
    def refusals(self) -> list[str]:
        """Parts of the work that Redis denies now, as ``part: reason``. Safe in any thread."""
        found = self._elector.troubles.refusals + self._registration.troubles.refusals
        denied = self._work.errors().items()
        return found + [f"{pair}: {why}" for pair, why in denied if meaning_of_text(why) is Meaning.DENIED]

    @property
    def since_renewal_s(self) -> float | None:
        """Seconds since the lease was last renewed, while this replica leads by one."""
        return self._elector.since_renewal_s

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Take part in elections until cancelled or stopped. It releases the lease at its end.

        Raises:
            UnreachableError: Redis does not answer at the start.
            UnsupportedServerError: The server is too old.
            ConfigurationError: The event loop is not asyncio's.
            RuntimeError: This instance has run before.
        """
        loop = require_asyncio("a reaper")
        if self._scope is not None:
            raise RuntimeError("cannot run: a Reaper runs once. Make a new one.")
        self._loop = loop
        with anyio.CancelScope() as self._scope:
            if self.is_stopping:
                self._scope.cancel()
            try:
                self.server = await once_served(self._ask_server, self._elector.is_not_served)
                async with anyio.create_task_group() as tasks:
                    await tasks.start(self._callbacks.run)
                    tasks.start_soon(self._registration.run)
                    tasks.start_soon(self._metrics.run)
                    if not self.settings.observe:
                        tasks.start_soon(self._beats.run)
                    tasks.start_soon(self._elector.run, self._work.work, self._began, self._ended)
                    task_status.started()
                if not self.is_stopping:
                    raise RuntimeError("reaper stopped unexpectedly: an internal task was cancelled.")
            finally:
                with anyio.CancelScope(shield=True):
                    await self._farewell()

    async def _ask_server(self) -> str:
        return str(await check_server(self._control, self.settings.redis_url))

    def _heartbeat_s(self) -> float:
        return self.settings.heartbeat.total_seconds()

    async def _farewell(self) -> None:
        """Unregister and report what is left, each in bounded time, and close all connections."""
        with anyio.move_on_after(FAREWELL_S):
            await self._registration.leave(self.replica_id)
        with anyio.move_on_after(FAREWELL_S):
            await self._callbacks.drain()
        await self._client.aclose()
        await self._control.aclose()
        await self._reader.aclose()
        await self._listener.aclose()

    def stop(self) -> None:
        """End `run`, release the lease and return. Before `run`, it prevents the start.

        You can call it from any thread.
        """
        self.is_stopping = True
        if self._loop is not None and self._scope is not None:  # else `run` sees that it need not begin
            call_in(self._loop, self._scope.cancel)

    def reload(self, settings: ReaperSettings) -> None:
        """Apply changed groups and their defaults, and log other changed settings, which need a restart."""
        fixed = [
            name
            for name in ReaperSettings.model_fields
            if name not in RELOADABLE and getattr(settings, name) != getattr(self.settings, name)
        ]
        if fixed:
            logger.warning("changed settings need a restart: %s", fields(settings=",".join(sorted(fixed))))
        changes = {name: getattr(settings, name) for name in RELOADABLE}
        self.settings = self.settings.model_copy(update=changes)
        self._work.reload(self.settings)
        self._registration.at_once()
        logger.info("settings reloaded: %s", fields(groups=len(self.settings.groups)))

    async def __aenter__(self) -> Self:
        tasks = await self._inside.enter_async_context(anyio.create_task_group())
        try:
            await tasks.start(self.run)
        except BaseException:
            await self._inside.aclose()  # no other task runs in it, so the caller gets the error itself
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.stop()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._inside.__aexit__(kind, error, trace)  # perhaps `run` failed, and cancelled the block
        await self._inside.aclose()  # the block's own error stays as it is, outside of any exception group
        return None

    # ---- terms

    def _began(self, term: Term) -> None:
        self._last_token = term.token
        self._metrics.elected()
        self._registration.at_once()
        self._callbacks.report("leadership_acquired", holder=term.holder, token=term.token)

    def _ended(self, term: Term, end: EndOfTerm) -> None:
        self._registration.at_once()
        self._callbacks.report("leadership_lost", holder=term.holder, token=term.token, reason=str(end))

    # ---- registration

    def _replica(self, at_ms: int) -> Replica:
        """Return what is registered of this replica at ``at_ms``, by the server's clock."""
        self._started_ms = self._started_ms or at_ms
        return Replica(
            id=self.replica_id,
            name=self.settings.name or self.host,
            host=self.host,
            pid=os.getpid(),
            version=_distribution_version(),
            role=LEADER if self.is_leader else FOLLOWER,
            token=self._last_token,
            started_ms=self._started_ms,
            at_ms=at_ms,
            heartbeat_ms=to_ms(self.settings.heartbeat),
            observe=self.settings.observe,
            terms=self._elector.terms,
            renewals_failed=self._elector.renewals_failed,
            server=self.server,
            groups=self._work.reports(),
        )
