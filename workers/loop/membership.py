"""The worker's view of its group, which is the group settings, the retry stream, and the server's clock."""

import logging
import random
from math import inf

import anyio
from redis.exceptions import RedisError

from workers.loop.in_flight import Source
from workers.loop.notifier import Notifier
from workers.loop.reporting import Reporter
from workers.protocol.calls.membership import (
    DEFAULT_MAX_DELIVERIES,
    DEFAULT_REDELIVERY,
    DEFAULT_VISIBILITY_TIMEOUT,
    GroupSettings,
    Joined,
    join_group,
)
from workers.protocol.connection import COMMAND_TIMEOUT_S, KeptConnection
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, is_contact_error, meaning_of
from workers.protocol.messages import RecoveryMode
from workers.runtime.clock import monotonic
from workers.runtime.pauses import pause_s
from workers.runtime.settings import to_ms
from workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

REFRESH_S = 30.0
"""How often a worker reads the group settings. ``FORMER_MS`` in ``9_beat.lua`` depends on it."""
OLD = 0.5
"""Part of the visibility timeout. A heartbeat that is older does not allow a job to begin."""
STAND_BY_JITTER_S = 0.2
"""Spreads the calls by which embedded workers ask whether the reaper has left."""
REGISTRATION_SLACK_S = COMMAND_TIMEOUT_S
"""Time for which a registration lasts after the next join is due, because calls can be late or fail."""
READING_SETTINGS = "reading the group settings"


class Membership:
    """Joins the group, and keeps its settings up to date.

    Each join registers the worker, and reads the group settings. A lowered visibility timeout counts for recovery only
    after every worker has had the time to read it (``9_beat.lua``).
    """

    def __init__(self, connection: KeptConnection, settings: WorkerSettings, consumer: str, reporter: Reporter) -> None:
        self._connection = connection
        self._settings = settings
        self._reporter = reporter
        self._consumer = consumer
        self.group_settings = GroupSettings(
            redelivery=settings.redelivery or DEFAULT_REDELIVERY,
            visibility_timeout=settings.visibility_timeout or DEFAULT_VISIBILITY_TIMEOUT,
            max_deliveries=settings.max_deliveries or DEFAULT_MAX_DELIVERIES,
            recovery=settings.recovery,
            reads_retries=False,
        )
        """Before the first join, those that the worker goes by if the group has none."""
        self.visibility_s = inf
        """The group's visibility timeout."""
        self._again = anyio.Event()
        self._clock_offset_ms = 0.0
        self.timeout_changed = -inf
        """When the visibility timeout changed last, on the monotonic clock. Read in another thread."""
        self._mismatch = ""
        self._served_s = 0.0
        self.joined = Notifier()
        self.joins = 0
        """How often the group was joined. The reader takes stock after each join."""
        keys, timeout_s = settings.keys, settings.timeout.total_seconds() if settings.timeout else inf
        self.main = Source(keys.stream, keys.stream, timeout_s)
        self.retries = Source(keys.retry, keys.stream, timeout_s)
        self.both = (self.main, self.retries)
        """All sources of deliveries."""
        self.sources: tuple[Source, ...] = (self.main,)
        """The sources that are read now."""

    @property
    def recovers(self) -> bool:
        """Return whether this worker recovers stalled jobs. Its own settings and the group's must both be embedded."""
        return self._settings.recovery is self.group_settings.recovery is RecoveryMode.EMBEDDED

    def is_gone(self, source: Source, error: Exception) -> bool:
        """Return whether ``error`` means that the retry stream is missing, and the group does not read it any more.

        It is created again only if the policy needs it. Otherwise its deliveries are lost. For any thread.
        """
        return meaning_of(error) is Meaning.NO_GROUP and source not in self.sources

    def now_ms(self) -> int:
        """Return the server's time, as of the last join plus our monotonic clock, in ms since the epoch.

        After the server's clock was set, it is wrong until the next join. Only times of events depend on it.
        """
        return int(monotonic() * 1000 + self._clock_offset_ms)

    async def join(self) -> None:
        """Join the group, and create it if it is missing. Raises redis-py's errors."""
        settings = self._settings
        joined = await join_group(
            self._connection,
            settings.keys,
            start=settings.group_start,
            redelivery=settings.redelivery,
            visibility_ms=to_ms(settings.visibility_timeout) if settings.visibility_timeout else None,
            max_deliveries=settings.max_deliveries,
            recovery=settings.recovery,
            assumed=self.group_settings,
            name=settings.base_name,
            consumer=self._consumer,
            counts_for_ms=round((REFRESH_S + REGISTRATION_SLACK_S) * 1000),
            begins=not self.joins,
        )
        self._take(joined)

    def join_again(self) -> None:
        """Read the group settings now, because there is a sign that they have changed."""
        self._again.set()

    def is_recent(self, proven: float) -> bool:
        """Return whether a heartbeat that was sent at ``proven`` allows a job to begin."""
        return proven >= monotonic() - self.visibility_s * OLD

    def _take(self, joined: Joined) -> None:
        self._clock_offset_ms = joined.server_ms - monotonic() * 1000
        self._log(joined)
        self.group_settings = group_settings = joined.group_settings
        visibility_s = group_settings.visibility_timeout.total_seconds()
        if visibility_s != self.visibility_s:
            self.visibility_s, self.timeout_changed = visibility_s, monotonic()
        self.sources = (self.main, self.retries) if group_settings.reads_retries else (self.main,)
        self._served_s = joined.served_ms / 1000
        self.joins += 1
        self.joined.notify()

    def _log(self, joined: Joined) -> None:
        name = self._settings.keys.name
        if joined.created_at and self.joins:
            logger.error(
                "group was missing and is created again, jobs in between can be lost or run again: %s",
                fields(group=name, start=joined.created_at),
            )
        elif joined.created_at:
            logger.info("group created: %s", fields(group=name, start=joined.created_at))
        if self.joins and joined.group_settings != self.group_settings:
            logger.warning("group settings changed: %s", fields(group=name, **joined.group_settings.facts()))
        if joined.begins:
            logger.info("no reaper serves the group, its workers recover stalled jobs: %s", fields(group=name))
        if joined.mismatch and joined.mismatch != self._mismatch:
            logger.warning("group settings override this worker: %s", fields(group=name, differences=joined.mismatch))
        self._mismatch = joined.mismatch

    def _until_next_join_s(self) -> float:
        """Return the refresh interval, or less if the lease of the group's reaper ends before."""
        if self._settings.recovery is RecoveryMode.EMBEDDED and self._served_s:
            return min(REFRESH_S, self._served_s + random.uniform(0, STAND_BY_JITTER_S))
        return REFRESH_S

    async def keep_fresh(self) -> None:
        """Join again every `REFRESH_S`, until cancelled. Group settings and retry stream may have changed."""
        failures = 0
        while True:
            with anyio.move_on_after(pause_s(failures) if failures else self._until_next_join_s()):
                await self._again.wait()
            self._again = anyio.Event()
            try:
                await self.join()
                failures = 0
                self._reporter.works(READING_SETTINGS)
            except (RedisError, OSError) as error:
                failures += 1
                if not is_contact_error(error):  # the reader logs the outage
                    self._reporter.failed(READING_SETTINGS, error)
