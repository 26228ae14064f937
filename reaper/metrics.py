"""What a replica shows when metrics are collected: whether it leads, and, while it does, the state of its groups."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack

import anyio
from redis.exceptions import RedisError

from reaper.replicas import GroupReport
from workers.protocol.calls.sight import Sight
from workers.protocol.keys import GroupKeys, group_keys
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.gauges import LOOK_INTERVAL_S, GroupGauges
from workers.telemetry.instruments import OBSERVATIONS
from workers.telemetry.names import Attributes

logger = logging.getLogger(__name__)

LEADING_POLL_S = 0.5


class ReplicaMetrics:
    """Gauges of one replica, and of its groups while it leads."""

    def __init__(
        self,
        namespace: str,
        *,
        leads: Callable[[], bool],
        token: Callable[[], int],
        reports: Callable[[], Mapping[str, GroupReport]],
        refused: Callable[[], int],
        look: Callable[[GroupKeys], Awaitable[Sight]],
    ) -> None:
        self._of_replica: Attributes = {telemetry.NAMESPACE: namespace}
        self._leads = leads
        self._token = token
        self._reports = reports
        self._refused = refused
        self._waiting: Mapping[str, bool] = {}
        self._look = look
        self._gauges = GroupGauges(leads, lambda keys: self._waiting.get(keys.pair))

    def elected(self) -> None:
        """Count a term that begins."""
        instruments.ELECTIONS.add(1, self._of_replica)

    async def run(self) -> None:
        """Look at the groups while this replica leads, until cancelled; not at all where nobody collects metrics."""
        if not telemetry.is_measuring():
            return
        with ExitStack() as shown:
            shown.callback(OBSERVATIONS.add(instruments.LEASE_HELD, lambda: [(int(self._leads()), self._of_replica)]))
            shown.callback(OBSERVATIONS.add(instruments.TERM, lambda: [(self._token(), self._of_replica)]))
            shown.callback(OBSERVATIONS.add(instruments.REFUSED, lambda: [(self._refused(), self._of_replica)]))
            shown.enter_context(self._gauges.shown())
            while True:
                await self._wait_until_leading()
                try:
                    reports = self._reports().values()
                    groups = [group_keys(report.stream, report.group) for report in reports]
                    self._gauges.seen = {keys: await self._look(keys) for keys in groups}
                    self._waiting = {report.pair: report.grace_ms_left > 0 for report in reports}
                except (RedisError, OSError):
                    self._gauges.seen = {}
                    logger.debug("cannot look at the groups for the metrics", exc_info=True)  # the elector tells
                await anyio.sleep(LOOK_INTERVAL_S)

    async def _wait_until_leading(self) -> None:
        while not self._leads():
            self._gauges.seen = {}
            await anyio.sleep(LEADING_POLL_S)
