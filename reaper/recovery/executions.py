"""How often deliveries were executed, as far as a leader has seen it. Pure.

Redis counts how often an entry was handed out: a read of history (``XREADGROUP … 0``) raises that as an execution
does, and so does an ``XAUTOCLAIM`` whose caller looks only. For workers that are not ours, a leader may go by what it
has seen instead: an entry is executed once by each consumer that it meets as its owner, in turn. What stalls is then
recovered, which the job counts itself.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any

from reaper.recovery.backlogs import is_foreign

MOST_KNOWN = 100_000
"""Entries that are known; of more, the owners of those that were looked at first are forgotten."""
MOST_SAMPLED = 100


class Executions:
    """Owners of one source's pending entries, and how many each has had. What is not known counts as executed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, int]] = {}
        self._before: dict[bytes, tuple[bytes, int]] = {}

    def begin(self) -> None:
        """A full scan begins: what it does not meet is forgotten when the next one begins."""
        self._before, self._known = self._known, {}

    def looked(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take rows of the pending entries list, as they are now."""
        known, before = self._known, self._before
        for entry_id, consumer, *_ in rows:
            owner, times = known.pop(entry_id, None) or before.get(entry_id) or (consumer, 1)
            if consumer and owner != consumer and is_foreign(consumer):
                times += 1
            known[entry_id] = consumer, times
        while len(known) > MOST_KNOWN:
            del known[next(iter(known))]

    def of(self, entry_id: bytes) -> int:
        """Return how often an entry was executed."""
        return (self._known.get(entry_id) or self._before.get(entry_id) or (b"", 1))[1]


class Counts:
    """Tells, of a sample of entries, where the count rises and the owner stays the same."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, int]] = {}

    def looked(self, rows: Iterable[Sequence[Any]]) -> list[bytes]:
        """Take rows with such counts; return the consumers that were handed something of their own once more."""
        again = []
        for entry_id, consumer, _, count in rows:
            owner, before = self._known.get(entry_id, (consumer, count))
            if owner == consumer and count > before:
                again.append(consumer)
            if entry_id in self._known or len(self._known) < MOST_SAMPLED:
                self._known[entry_id] = consumer, count
        return again

    def keep(self, entry_ids: Container[bytes]) -> None:
        """Forget what is not pending any more."""
        self._known = {one: known for one, known in self._known.items() if one in entry_ids}
