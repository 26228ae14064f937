"""What foreign consumers hold that is old, and when one of them was last known to be at work on it. Pure.

A worker of ours proves life; of a foreign one nothing is seen but what it settles: a read says that some process of
its name lives, and an ``XACK`` names nobody. But what was handed to one consumer at about the same time went to one
process, and where one of those deliveries is settled late, that process was alive late. A process that was started
anew under the same name settles none of them: it does not know of them, or reads its history, which makes them young.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from workers.protocol.keys import NOBODY, RESTORED_CONSUMER, RETURNED_CONSUMER, is_worker
from workers.protocol.messages import entry_order

TOGETHER_MS = 1_000
"""What a consumer was handed within so long went to the same process: none ends, starts anew and reads in less."""
GRAIN_MS = 500
"""Deliveries are told apart by when they were handed out, in such steps: a consumer may settle thousands a second."""
MOST_HELD = 5_000
"""Deliveries that are looked after, the latest looked at; of more, what lies in front is known first."""
MOST_GRAINS = 1_000
"""Steps that are remembered of one consumer, those of what it was handed first."""


_NOBODYS = frozenset({RESTORED_CONSUMER.encode(), RETURNED_CONSUMER.encode(), NOBODY.encode()})


@lru_cache(maxsize=10_000)
def is_foreign(consumer: bytes) -> bool:
    """Tell whether a consumer is no worker of ours, by its name: one of ours would prove life, and settle by script."""
    return consumer not in _NOBODYS and not is_worker(consumer)


class Held(NamedTuple):
    """A delivery that was pending when it was looked at. Instants are ms of one monotonic clock."""

    consumer: bytes
    handed_ms: int
    """When it was handed out, or last extended."""
    seen_ms: int


class _Settled(NamedTuple):
    """When something was settled that was handed out at one moment: not before the first, not after the second."""

    after_ms: int
    before_ms: int


class Backlogs:
    """The old deliveries of one source, by consumer; what is settled longer than ``memory_ms`` ago is forgotten."""

    def __init__(self, memory_ms: int) -> None:
        self._memory_ms = memory_ms
        self._held: dict[bytes, Held] = {}
        self._asked: set[bytes] = set()
        """What calls of ours are about, or were: they may have ended it."""
        self._doubtful: set[bytes] | None = None
        """The same, since the look began that is under way: its rows may be older than the answers."""
        self._settled: dict[bytes, dict[int, _Settled]] = {}

    def __len__(self) -> int:
        return len(self._held)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Take a look, from the request on; `looked` tells what came of it."""
        self._doubtful = set(self._asked)
        try:
            yield
        finally:
            self._doubtful = None

    def looked(self, rows: Sequence[Sequence[Any]], start: bytes, now_ms: int, *, to_the_end: bool) -> None:
        """Take a look at the pending entries list from entry ``start`` on: its rows, and whether nothing lies behind.

        What was held there and is pending no more has been settled.
        """
        self._forget(now_ms)
        found = {row[0] for row in rows}
        first, last = entry_order(start), entry_order(rows[-1][0]) if rows else (0, 0)
        for entry_id in [one for one in self._held if one not in found]:
            if first <= entry_order(entry_id) and (to_the_end or entry_order(entry_id) < last):
                self.settled(self._held.pop(entry_id), now_ms)
        for entry_id, consumer, idle_ms, *_ in rows:
            if not self._doubtful or entry_id not in self._doubtful:
                self.seen(entry_id, consumer, idle_ms, now_ms)
        while len(self._held) > MOST_HELD:
            del self._held[next(iter(self._held))]

    def seen(self, entry_id: bytes, consumer: bytes, idle_ms: int, now_ms: int) -> None:
        """Note that a delivery is pending."""
        self._held.pop(entry_id, None)
        if idle_ms >= 0 and is_foreign(consumer) and entry_id not in self._asked:
            self._held[entry_id] = Held(consumer, now_ms - idle_ms, now_ms)

    def first(self) -> bytes | None:
        """Return the first entry ID of those that are held."""
        return min(self._held, key=entry_order, default=None)

    def asks(self, entry_ids: Collection[bytes]) -> dict[bytes, Held]:
        """Return, and forget, what is known of deliveries that a call of ours may end: that is no settlement.

        Nothing is noted of them until an answer is there (`answered`), or they are known to be gone.
        """
        self._asked.update(entry_ids)
        if self._doubtful is not None:
            self._doubtful.update(entry_ids)
        return self._take_out(entry_ids)

    def answered(self, entry_ids: Iterable[bytes]) -> None:
        """Note that it is known what became of what was asked for."""
        self._asked.difference_update(entry_ids)

    def _take_out(self, entry_ids: Iterable[bytes]) -> dict[bytes, Held]:
        if not self._held:
            return {}
        return {entry_id: held for entry_id in entry_ids if (held := self._held.pop(entry_id, None))}

    def gone(self, entry_ids: Iterable[bytes], now_ms: int) -> None:
        """Note what others ended: those of ``entry_ids`` that were held were settled by now."""
        if self._held:
            for held in self._take_out(entry_ids).values():
                self.settled(held, now_ms)

    def settled(self, held: Held, now_ms: int) -> None:
        """Note that a delivery was settled: since it was seen last, and before ``now_ms``."""
        grain = -(-held.handed_ms // GRAIN_MS) * GRAIN_MS
        of_consumer = self._settled.setdefault(held.consumer, {})
        known = of_consumer.get(grain, _Settled(held.seen_ms, now_ms))
        of_consumer[grain] = _Settled(max(known.after_ms, held.seen_ms), max(known.before_ms, now_ms))
        if len(of_consumer) > MOST_GRAINS:
            del of_consumer[max(of_consumer)]

    def at_work(self, consumer: bytes, handed_ms: Iterable[int], since_ms: int) -> int:
        """Count what ``consumer`` was handed at ``handed_ms`` while it is known to have lived at ``since_ms``.

        It has settled, then or later, what it had been handed by that moment: the process that has the delivery.
        """
        grains = self._settled.get(consumer)
        if not grains:  # as in a mass: who is gone settles nothing
            return 0
        first = min((grain for grain, settled in grains.items() if settled.after_ms >= since_ms), default=None)
        return 0 if first is None else sum(first <= handed + TOGETHER_MS for handed in handed_ms)

    def settled_lately(self, consumer: bytes, handed_ms: int) -> int | None:
        """Return when ``consumer``, as handed something at ``handed_ms``, may have settled something last; or None."""
        grains = self._settled.get(consumer, {}).items()
        return max((one.before_ms for grain, one in grains if grain <= handed_ms + TOGETHER_MS), default=None)

    def at_work_on(self, now_ms: int) -> Mapping[bytes, int]:
        """Return by consumer since when it was handed what is no older than something that it may have settled lately.

        Lately is within the memory. What it was handed before that, it has left lying for so long.
        """
        self._forget(now_ms)
        return {consumer: min(grains) - TOGETHER_MS for consumer, grains in self._settled.items()}

    def _forget(self, now_ms: int) -> None:
        oldest = now_ms - self._memory_ms
        for consumer, grains in list(self._settled.items()):
            lately = {grain: settled for grain, settled in grains.items() if settled.before_ms >= oldest}
            if lately:
                self._settled[consumer] = lately
            else:
                del self._settled[consumer]
