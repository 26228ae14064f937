"""Reads in the log of the replicas which losses they report."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.simulation.plays import GROUP_LOST, LOST_DELIVERY

LOSSES = {
    "the group was destroyed, or all of its consumers were deleted: %s": GROUP_LOST,
    "a third party deleted a consumer, its pending deliveries are lost: %s": LOST_DELIVERY,
    "a consumer was removed, its pending deliveries are settled or lost: %s": LOST_DELIVERY,
}
"""The messages, and what they report. If the product changes one, stories with deletions fail."""


class _Reader(logging.Handler):
    def __init__(self, told: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg in LOSSES:
            facts = record.args[0].facts  # type: ignore[index, union-attr]
            self._told(LOSSES[record.msg], str(facts.get("consumer", "")))


@contextmanager
def read_log(told: Callable[[str, str], None]) -> Iterator[None]:
    """Call ``told`` with each loss that a replica logs, and its consumer. All other logs may be disabled meanwhile."""
    logger, reader = logging.getLogger("reaper.recovery.notes"), _Reader(told)
    manager, logger.manager = logger.manager, logging.Manager(logging.root)
    logging.disable(manager.disable)  # loggers forget which levels were disabled
    logger.addHandler(reader)
    try:
        yield
    finally:
        logger.removeHandler(reader)
        logger.manager = manager
        logging.disable(manager.disable)
