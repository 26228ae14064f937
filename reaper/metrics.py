"""What a replica shows when metrics are collected: whether it leads, and, while it does, the state of its groups."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack

import anyio
from redis.exceptions import RedisError

from reaper.health import GroupState, Snapshot
from reaper.replicas import GroupReport
from workers.protocol import instruments, telemetry
from workers.protocol.instruments import OBSERVATIONS
from workers.protocol.telemetry import Attributes

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 10.0
"""How often the leader looks at its groups for the metrics; what is collected is at most that old."""
LEADING_POLL_S = 0.5

Values = Iterator[tuple[float, Attributes]]


class ReplicaMetrics:
    """Gauges of one replica. Collecting happens in another thread: it only reads what was last seen."""

    def __init__(
        self,
        namespace: str,
        *,
        leads: Callable[[], bool],
        token: Callable[[], int],
        reports: Callable[[], Mapping[str, GroupReport]],
        look: Callable[[], Awaitable[Snapshot]],
    ) -> None:
        self._of_replica: Attributes = {telemetry.NAMESPACE: namespace}
        self._leads = leads
        self._token = token
        self._reports = reports
        self._look = look
        self._groups: tuple[GroupState, ...] = ()
        self._waiting: tuple[GroupReport, ...] = ()

    def elected(self) -> None:
        """Count a term that begins."""
        instruments.ELECTIONS.add(1, self._of_replica)

    async def run(self) -> None:
        """Look at the groups while this replica leads, until cancelled; not at all where nobody collects metrics."""
        if not telemetry.is_measuring():
            return
        with ExitStack() as shown:
            for end in self._show():
                shown.callback(end)
            while True:
                await self._wait_until_leading()
                try:
                    self._groups = (await self._look()).groups
                    self._waiting = tuple(self._reports().values())
                except (RedisError, OSError):
                    logger.debug("cannot look at the groups for the metrics", exc_info=True)  # the elector tells
                await anyio.sleep(LOOK_INTERVAL_S)

    async def _wait_until_leading(self) -> None:
        while not self._leads():
            self._groups, self._waiting = (), ()
            await anyio.sleep(LEADING_POLL_S)

    def _show(self) -> Iterator[Callable[[], None]]:
        yield OBSERVATIONS.add(instruments.LEASE_HELD, lambda: [(int(self._leads()), self._of_replica)])
        yield OBSERVATIONS.add(instruments.TERM, lambda: [(self._token(), self._of_replica)])
        yield OBSERVATIONS.add(instruments.GRACE_ACTIVE, self._grace)
        for gauge, value in _OF_GROUPS:
            yield OBSERVATIONS.add(gauge, lambda value=value: self._of_each(value))  # type: ignore[misc]

    def _grace(self) -> Values:
        for report in self._waiting if self._leads() else ():
            yield int(report.grace_ms_left > 0), _labels(report.stream, report.group)

    def _of_each(self, value: "Callable[[GroupState], float | None]") -> Values:
        for group in self._groups if self._leads() else ():
            seen = value(group)
            if seen is not None:
                yield seen, _labels(group.stream, group.group)


def _labels(stream: str, group: str) -> Attributes:
    return {telemetry.DESTINATION: stream, telemetry.GROUP: group}


def _oldest_ready_s(group: GroupState) -> float | None:
    """Return the age of the oldest job that waits; 0 = none does, None = it is not known."""
    waiting = [source for source in (group.main, group.retry) if source.ready.number]
    ages = [source.oldest_ready_ms for source in waiting if source.oldest_ready_ms is not None]
    return max(ages) / 1000 if ages else None if waiting else 0.0


def _oldest_pending_s(group: GroupState) -> float:
    return max(0, group.main.oldest_pending_ms or 0, group.retry.oldest_pending_ms or 0) / 1000


_OF_GROUPS: tuple[tuple[instruments.Gauge, Callable[[GroupState], float | None]], ...] = (
    (instruments.IN_FLIGHT, lambda group: group.main.pending + group.retry.pending),
    (instruments.READY_AGE, _oldest_ready_s),
    (instruments.PENDING_AGE, _oldest_pending_s),
    (instruments.SCHEDULED, lambda group: group.scheduled),
    (instruments.SUSPECTS, lambda group: group.suspects_parked + group.suspects_out),
    (instruments.DEAD_LETTERS, lambda group: group.dead_letters),
)
