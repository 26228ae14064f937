"""Visibility timers, one for each pending delivery. Pure, without clock or I/O.

A million of them must stay small, so there is no object per timer. Timers that are due within the same few
milliseconds share a bucket, and one heap orders the buckets.

`arm` moves a timer earlier or later. A move by less than `TOLERANCE_MS` is no move, so a scan that measures the same
idle time again is cheap.

Redis sends no notice of an ``XACK``. So a full scan calls `begin_sweep`, arms the entries that it finds,
and then calls `sweep`, which forgets all others.
"""

import heapq

BUCKET_MS = 5
TOLERANCE_MS = 50


class _Bucket:
    """Timers due at the same moment. ``ids`` may have stale ones, because the map names the bucket of a timer."""

    __slots__ = ("due_ms", "ids", "live", "mark")

    def __init__(self, due_ms: int, mark: int) -> None:
        self.due_ms = due_ms
        self.ids: list[bytes] = []
        self.live = 0
        self.mark = mark

    def __lt__(self, other: "_Bucket") -> bool:
        return self.due_ms < other.due_ms

    def leave(self) -> None:
        """Count a timer fewer. Its ID stays among the stale ones, until the last timer goes."""
        self.live -= 1
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
            # The key's object goes with its old bucket. Otherwise each scan would leave two copies of every ID behind.
            del self._by_id[entry_id]
        bucket = self._fresh.get(slot)
        if bucket is None:
            bucket = self._fresh[slot] = _Bucket(slot, self._mark)
            heapq.heappush(self._heap, bucket)
        bucket.ids.append(entry_id)
        bucket.live += 1
        self._by_id[entry_id] = bucket

    def keep(self, entry_id: bytes) -> bool:
        """Note that ``entry_id`` was found, and keep its timer. Return whether it has one."""
        known = self._by_id.get(entry_id)
        if known is not None:
            self.arm(entry_id, known.due_ms)
        return known is not None

    def disarm(self, entry_id: bytes) -> None:
        """Forget the timer of ``entry_id``, if there is one."""
        bucket = self._by_id.pop(entry_id, None)
        if bucket is not None:
            bucket.leave()

    def pop_due(self, now_ms: int, limit: int) -> list[bytes]:
        """Remove and return up to ``limit`` entry IDs that are due, earliest bucket first."""
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
        """Start a mark-and-sweep. Timers that are not armed again before `sweep` are forgotten."""
        self._mark += 1
        self._unseen = [bucket for bucket in self._heap if bucket.live]
        self._fresh = {}

    def sweep(self, limit: int = 10_000) -> list[bytes] | None:
        """Forget unseen timers, and return them. It looks at about ``limit`` timers. None = the sweep is complete."""
        if not self._unseen:
            self._drop_empty()
            return None
        forgotten = []
        while self._unseen and limit > 0:
            bucket = self._unseen.pop()
            limit -= 1 + len(bucket.ids)
            for entry_id in bucket.ids:
                if self._by_id.get(entry_id) is bucket:
                    del self._by_id[entry_id]
                    forgotten.append(entry_id)
            bucket.live = 0
            bucket.ids.clear()
        return forgotten

    def _drop_empty(self) -> None:
        # Each scan empties all buckets of the last one. With a long timeout, dozens of generations would wait here.
        self._heap = [bucket for bucket in self._heap if bucket.live]
        heapq.heapify(self._heap)
        self._fresh = {due_ms: bucket for due_ms, bucket in self._fresh.items() if bucket.live}

    def _drop_head(self) -> None:
        bucket = heapq.heappop(self._heap)
        if self._fresh.get(bucket.due_ms) is bucket:
            del self._fresh[bucket.due_ms]
