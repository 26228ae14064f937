"""Metrics of a replica, which are the number of its groups and their state."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import anyio
from redis.exceptions import RedisError, ResponseError

from reaper.context import ReplicaContext
from reaper.reasons import FEW_GROUPS, REPORTED, count_patterns, worst
from reaper.replicas import PatternCounts
from reaper.sharing.tenures import Tenures
from workers.protocol.calls.group_moves import look_at_group
from workers.protocol.keys import group_keys
from workers.protocol.log_fields import fields
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.gauges import LOOK_INTERVAL_S, GroupGauges, Known, Values
from workers.telemetry.instruments import OBSERVATIONS
from workers.telemetry.names import Attributes

logger = logging.getLogger(__name__)

HELD_POLL_S = 0.5


class ReplicaMetrics:
    """Gauges of one replica and of the groups that it holds. Of many groups, only the worst have gauges."""

    def __init__(self, context: ReplicaContext, tenures: Tenures, denied: Callable[[], int]) -> None:
        """``denied`` returns how many parts of the work Redis denies now."""
        self._context = context
        self._tenures = tenures
        self._denied = denied
        self._of_replica: Attributes = {telemetry.NAMESPACE: context.settings.namespace_keys.namespace}
        self._known: Known = {}
        self._counts: Mapping[str, PatternCounts] = {}
        self._gauges = GroupGauges(lambda: self._holds, lambda: self._known)

    @property
    def _holds(self) -> bool:
        return not self._context.settings.observe and self._tenures.held > 0

    def _numbers(self) -> Mapping[str, tuple[int, int]]:
        """Return the numbers of watched and of held groups, by pattern. Observers hold none."""
        return {} if self._context.settings.observe else self._tenures.numbers()

    def _labels(self, pattern: str) -> Attributes:
        return self._of_replica | ({telemetry.PATTERN: pattern} if pattern else {})

    def _by_pattern(self, which: int) -> Values:
        for pattern, numbers in (self._numbers() or {"": (0, 0)}).items():
            yield numbers[which], self._labels(pattern)

    def _degraded(self) -> Values:
        for pattern, counts in (self._counts or {"": PatternCounts()}).items():
            for kind in REPORTED:
                yield counts.problems.get(kind, 0), self._labels(pattern) | {telemetry.PROBLEM: str(kind)}

    async def run(self) -> None:
        """Read the groups that this replica holds, until cancelled. Without an exporter, return at once."""
        if not telemetry.is_measuring():
            return
        with ExitStack() as shown:
            shown.callback(OBSERVATIONS.add(instruments.GROUPS_WATCHED, lambda: self._by_pattern(0)))
            shown.callback(OBSERVATIONS.add(instruments.LEASES_HELD, lambda: self._by_pattern(1)))
            shown.callback(OBSERVATIONS.add(instruments.GROUPS_DEGRADED, self._degraded))
            shown.callback(OBSERVATIONS.add(instruments.PARTS_DENIED, lambda: [(self._denied(), self._of_replica)]))
            shown.enter_context(self._gauges.shown())
            while True:
                if self._holds:
                    await self._look()
                    await anyio.sleep(LOOK_INTERVAL_S)
                else:
                    self._gauges.seen, self._known, self._counts = {}, {}, {}
                    await anyio.sleep(HELD_POLL_S)

    async def _look(self) -> None:
        """Read the worst of the groups. An unreadable group does not hide the other ones."""
        found, now_ms = list(self._tenures.reports().values()), self._context.server_ms()
        self._counts = count_patterns(self._numbers(), found, now_ms)
        self._known = {
            group_keys(*one.group.rsplit("/", 1)): {
                instruments.DISABLED: int(bool(one.disabled)),
                instruments.UNDELIVERABLE: one.undeliverable,
            }
            for one in (found if len(found) <= FEW_GROUPS else worst(found, now_ms))
        }
        seen = {}
        for keys in self._known:
            try:
                seen[keys] = await look_at_group(self._context.client, keys)
            except (RedisError, OSError) as error:  # which is logged where it matters
                logger.debug("cannot read a group for metrics: %s", fields(group=keys.name), exc_info=True)
                if not isinstance(error, ResponseError):
                    break
        self._gauges.seen = seen
