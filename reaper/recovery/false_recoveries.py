"""Deliveries that were recovered from a third-party consumer that was still working. Pure.

The reaper sees no heartbeat of a third-party consumer, and an ``XACK`` does not name its consumer. But a consumer that
settles one delivery after another one was recovered from it was alive, or was restarted under the same name.
"""

from collections.abc import Iterable

from workers.protocol.keys import MARKER_CONSUMER, NOBODY, RETURNED_CONSUMER, is_worker

MOST_WATCHED = 10_000
_NOT_CONSUMERS = frozenset({MARKER_CONSUMER.encode(), RETURNED_CONSUMER.encode(), NOBODY.encode()})


class FalseRecoveries:
    """The other deliveries of consumers from which a delivery was recovered, in one source."""

    __slots__ = ("_noted", "_scans_begun", "_scans_done", "_watched")

    def __init__(self) -> None:
        self._scans_begun = self._scans_done = 0
        self._watched: dict[bytes, tuple[bytes, int]] = {}
        """The consumer and the number of the first full scan that began after the recovery, by entry ID."""
        self._noted: dict[bytes, None] = {}
        """Consumers from which a delivery was recovered since the last full scan began."""

    def scan_begins(self) -> None:
        """Note that a full scan begins."""
        self._scans_begun += 1
        self._noted = {}

    def scan_ends(self) -> None:
        """Note that the full scan ended. It met every watched entry that is still pending."""
        self._scans_done = self._scans_begun

    def recovered(self, consumer: bytes, left: Iterable[bytes]) -> None:
        """Note that a delivery was recovered from ``consumer``. ``left`` are its other pending entry IDs."""
        if consumer in self._noted or consumer in _NOT_CONSUMERS or is_worker(consumer):
            return
        self._noted[consumer] = None
        for entry_id in left:
            if len(self._watched) < MOST_WATCHED:
                self._watched.setdefault(entry_id, (consumer, self._scans_begun + 1))

    def forget(self, entry_ids: Iterable[bytes]) -> None:
        """Stop watching entries that a recovery call may have ended."""
        for entry_id in entry_ids if self._watched else ():
            self._watched.pop(entry_id, None)

    def gone(self, entry_ids: Iterable[bytes]) -> list[bytes]:
        """Return the consumer of each entry that was settled after a recovery. ``entry_ids`` are not pending any more.

        A consumer may have settled an entry before the recovery, and died then. So only entries count that a full
        scan met after it.
        """
        watched = [self._watched.pop(entry_id, None) for entry_id in entry_ids if self._watched]
        return [one[0] for one in watched if one and one[1] <= self._scans_done]
