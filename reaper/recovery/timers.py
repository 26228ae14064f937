"""Visibility timers: one per pending delivery, pure, without clock or I/O.

A million of them must stay small, so there is no object per timer: timers that are due within the same few
milliseconds share a bucket, and one heap orders the buckets.

Update rule: the newest knowledge counts. `arm` moves a timer later (an extension) as well as earlier; a move by less
than `TOLERANCE_MS` is no move, so that a scan that measures the same idle time again costs nothing.

Mark and sweep: nothing tells the reaper of an ``XACK``. A full scan calls `begin_sweep`, arms what it finds, and then
calls `sweep`, which forgets what the scan did not find.
"""

import heapq
from collections.abc import Callable, Collection, Iterable
from itertools import groupby

BUCKET_MS = 5
TOLERANCE_MS = 50


class _Bucket:
    """Timers due at the same moment. ``ids`` may hold stale ones: a timer's bucket is the one the map names."""

    __slots__ = ("due_ms", "ids", "live", "mark")

    def __init__(self, due_ms: int, mark: int) -> None:
        self.due_ms = due_ms
        self.ids: list[bytes] = []
        self.live = 0
        self.mark = mark

    def __lt__(self, other: "_Bucket") -> bool:
        return self.due_ms < other.due_ms

    def leave(self, timers: int = 1) -> None:
        """So many timers fewer. Their IDs stay among the stale ones, until the last timer goes."""
        self.live -= timers
        if not self.live:
            self.ids.clear()


class Timers:
    """Timers by entry ID. Instants are milliseconds of any one monotonic clock."""

    __slots__ = ("_by_id", "_fresh", "_heap", "_mark", "_unseen")

    def __init__(self) -> None:
        self._by_id: dict[bytes, _Bucket] = {}
        self._heap: list[_Bucket] = []
        self._fresh: dict[int, _Bucket] = {}
        self._unseen: list[_Bucket] = []
        self._mark = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._by_id

    def ids(self) -> Iterable[bytes]:
        """Return the entry IDs that have a timer."""
        return self._by_id.keys()

    def arm(self, entry_id: bytes, due_ms: int) -> None:
        """Set the timer of ``entry_id`` to ``due_ms``, rounded up to the bucket."""
        slot = -(-due_ms // BUCKET_MS) * BUCKET_MS
        known = self._by_id.get(entry_id)
        if known is not None:
            if abs(known.due_ms - slot) <= TOLERANCE_MS:
                if known.mark == self._mark:
                    return
                slot = known.due_ms
            known.leave()
            # The key's object goes with its old bucket: else each scan would leave two copies of every ID behind.
            del self._by_id[entry_id]
        bucket = self._bucket_of(slot)
        bucket.ids.append(entry_id)
        bucket.live += 1
        self._by_id[entry_id] = bucket

    def _bucket_of(self, slot: int) -> _Bucket:
        bucket = self._fresh.get(slot)
        if bucket is None:
            bucket = self._fresh[slot] = _Bucket(slot, self._mark)
            heapq.heappush(self._heap, bucket)
        return bucket

    def arm_popped(self, entry_ids: Collection[bytes], due_ms: int) -> None:
        """Set the timers of ``entry_ids``, none of which has one: they were popped, or disarmed, a moment ago."""
        bucket = self._bucket_of(-(-due_ms // BUCKET_MS) * BUCKET_MS)
        bucket.ids += entry_ids
        bucket.live += len(entry_ids)
        self._by_id.update(dict.fromkeys(entry_ids, bucket))

    def keep(self, entry_id: bytes) -> bool:
        """Note that ``entry_id`` was found, and that its timer stands; return whether it has one."""
        known = self._by_id.get(entry_id)
        if known is not None:
            self.arm(entry_id, known.due_ms)
        return known is not None

    def disarm(self, entry_id: bytes) -> None:
        """Forget the timer of ``entry_id``, if there is one."""
        bucket = self._by_id.pop(entry_id, None)
        if bucket is not None:
            bucket.leave()

    def disarm_all(self, entry_ids: Iterable[bytes]) -> None:
        """Forget the timers of ``entry_ids``, as far as there are any."""
        pop = self._by_id.pop
        for bucket, same in groupby([pop(entry_id, None) for entry_id in entry_ids]):
            if bucket is not None:
                bucket.leave(len(list(same)))

    def pop_due(self, now_ms: int, limit: int) -> list[bytes]:
        """Remove and return up to ``limit`` entry IDs whose time has come, earliest bucket first."""
        popped: list[bytes] = []
        while self._heap and limit > 0:
            bucket = self._heap[0]
            if bucket.live and bucket.due_ms > now_ms:
                break
            if bucket.live:
                ids = self._pop_from(bucket, limit)
                popped += ids
                limit -= len(ids)
            if not bucket.live:
                self._drop_head()
        return popped

    def _pop_from(self, bucket: _Bucket, limit: int) -> list[bytes]:
        ids: list[bytes] = []
        by_id = self._by_id
        while bucket.live and len(ids) < limit:
            latest = bucket.ids[len(ids) - limit :]
            del bucket.ids[-len(latest) :]
            for entry_id in latest:
                if by_id.get(entry_id) is bucket:
                    del by_id[entry_id]
                    bucket.live -= 1
                    ids.append(entry_id)
        return ids

    def next_due(self) -> int | None:
        """Return the earliest instant a timer is due, or None."""
        while self._heap and not self._heap[0].live:
            self._drop_head()
        return self._heap[0].due_ms if self._heap else None

    def begin_sweep(self) -> None:
        """Start a mark-and-sweep: what is not armed again before `sweep` returns True is forgotten."""
        self._mark += 1
        self._unseen = [bucket for bucket in self._heap if bucket.live]
        self._fresh = {}

    def sweep(self, limit: int = 10_000, forgets: Callable[[list[bytes]], None] | None = None) -> bool:
        """Forget unseen timers, looking at about ``limit``; return whether the sweep is complete.

        ``forgets`` is told of what is forgotten.
        """
        while self._unseen and limit > 0:
            bucket = self._unseen.pop()
            limit -= 1 + len(bucket.ids)
            forgotten = []
            for entry_id in bucket.ids:
                if self._by_id.get(entry_id) is bucket:
                    del self._by_id[entry_id]
                    forgotten.append(entry_id)
            if forgotten and forgets:
                forgets(forgotten)
            bucket.live = 0
            bucket.ids.clear()
        if self._unseen:
            return False
        self._drop_empty()
        return True

    def _drop_empty(self) -> None:
        # Each scan empties all buckets of the last one: with a long timeout, dozens of generations would wait here.
        self._heap = [bucket for bucket in self._heap if bucket.live]
        heapq.heapify(self._heap)
        self._fresh = {due_ms: bucket for due_ms, bucket in self._fresh.items() if bucket.live}

    def _drop_head(self) -> None:
        bucket = heapq.heappop(self._heap)
        if self._fresh.get(bucket.due_ms) is bucket:
            del self._fresh[bucket.due_ms]
