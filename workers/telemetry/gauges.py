"""Gauges of groups, which show the last values of each group when metrics are collected.

The holder of the lease reads the values in reaper mode, and every worker in embedded mode. Metrics are collected in
another thread, which only uses the last values.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from workers.protocol.calls.group_moves import GroupLoad
from workers.protocol.keys import GroupKeys
from workers.telemetry import instruments
from workers.telemetry import names as telemetry
from workers.telemetry.instruments import OBSERVATIONS, Gauge
from workers.telemetry.names import Attributes

LOOK_INTERVAL_S = 10.0
"""How often the values are read."""

OF_ITS_WORK = (instruments.DISABLED, instruments.UNDELIVERABLE)
"""Gauges whose values are not in Redis. The process that recovers knows them from its work."""

Known = Mapping[GroupKeys, Mapping[Gauge, float]]
"""The known values of `OF_ITS_WORK`, by group."""

Values = Iterator[tuple[float, Attributes]]


class GroupGauges:
    """The values of groups, as long as ``is_ours`` is true. ``known`` is called in the collecting thread."""

    def __init__(self, is_ours: Callable[[], bool], known: Callable[[], Known]) -> None:
        self._is_ours = is_ours
        self._known = known
        self.seen: Mapping[GroupKeys, GroupLoad] = {}
        """Replaced as a whole: another thread reads it."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the values while the block runs."""
        with ExitStack() as ends:
            for known in OF_ITS_WORK:
                ends.callback(OBSERVATIONS.add(known, partial(self._of_the_work, known)))
            for gauge, value in _VALUES:
                ends.callback(OBSERVATIONS.add(gauge, partial(self._of_each, value)))
            yield

    def _of_each(self, value: Callable[[GroupLoad], float]) -> Values:
        for keys, sight in self.seen.items() if self._is_ours() else ():
            yield value(sight), labels_of(keys)

    def _of_the_work(self, gauge: Gauge) -> Values:
        for keys, values in self._known().items() if self._is_ours() else ():
            if gauge in values:
                yield values[gauge], labels_of(keys)


def labels_of(keys: GroupKeys) -> Attributes:
    """Return the labels of all metrics of a group."""
    return {telemetry.DESTINATION: keys.stream, telemetry.GROUP: keys.group}


_VALUES: tuple[tuple[instruments.Gauge, Callable[[GroupLoad], float]], ...] = (
    (instruments.IN_FLIGHT, lambda sight: sight.in_flight),
    (instruments.READY_AGE, lambda sight: max(0, sight.oldest_ready_ms) / 1000),
    (instruments.PENDING_AGE, lambda sight: max(0, sight.oldest_pending_ms) / 1000),
    (instruments.SCHEDULED, lambda sight: sight.scheduled),
    (instruments.QUARANTINED, lambda sight: sight.quarantined),
    (instruments.DEAD_LETTERS, lambda sight: sight.dead_letters),
    (instruments.PAUSED, lambda sight: sight.paused),
    (instruments.RECOVERY_WAIT, lambda sight: sight.recovery_waits_ms / 1000),
)
