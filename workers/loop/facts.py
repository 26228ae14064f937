"""Builds the facts that a worker journals about its deliveries. It runs for every job, so it is written to be fast."""

import json
from collections.abc import Callable, Sequence
from math import inf
from time import time_ns
from typing import Any

from workers.loop.job import Job
from workers.protocol.calls.settlement import Ended
from workers.protocol.events import encode_data, encode_rows, head_of_many
from workers.protocol.messages import RecoveryMode, entry_ms, on_one_line
from workers.runtime.clock import monotonic

OLDEST_AUTOMATIC_ID_MS = 1_483_228_800_000
"""2017-01-01. Redis streams are younger, so a producer chose any lower entry ID, and that ID is not a time."""


MAX_TYPE_LENGTH = 64
"""Characters of a job's type that are journaled."""
_MAX_TYPE_BYTES = 4 * MAX_TYPE_LENGTH
_TYPES_KEPT = 1_000


class DeliveryFacts:
    """Builds the ``data`` of lifecycle events of one consumer, as JSON.

    ``type_field`` names the payload field that holds the type of a job; empty: no field does. ``now_ms`` returns the
    server's time in ms since the epoch; without it, this machine's time is used.
    """

    def __init__(
        self,
        group: str,
        consumer: str,
        mode: RecoveryMode,
        type_field: str = "",
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        common = {"group": group, "consumer": consumer, "mode": mode.as_journalled}
        self._head = encode_data(common).removesuffix("}").encode()
        self._head_of_many = head_of_many(common)
        self._claims = mode is not RecoveryMode.REAPER
        self._type_field = type_field.encode()
        self._now_ms = now_ms or _machine_ms
        self._types: dict[bytes, str] = {}
        """The type to journal, by the value of the field."""

    def of_settlement(self, item: Ended[Job]) -> bytes:
        """Return all that a report needs about the end of a delivery, so that it reads no earlier events."""
        verdict = item.verdict
        begun_ms = self._begun_ms([item])[0]
        begun = b"" if begun_ms is None else b',"begun_ms":%d' % begun_ms
        facts = b'%b%b,"run_ms":%d' % (self._open_facts(item.job), begun, item.run_ms)
        return b'%b,"error":%b}' % (facts, json.dumps(verdict.error).encode()) if verdict.error else facts + b"}"

    def of_acks(self, items: Sequence[Ended[Job]]) -> bytes:
        """Return the same of many acknowledged deliveries, as one entry. Hot."""
        jobs = [item.job for item in items]
        entries = [job.raw_entry_id for job in jobs]
        columns: dict[str, Sequence[Any]] = {}
        if False in [job.is_as_produced for job in jobs]:  # otherwise the entries hold all of this
            columns["job"] = [None if job.raw_id is job.raw_entry_id else job.raw_id for job in jobs]
            columns["enqueued_ms"] = [job.first_ms for job in jobs]
        if self._type_field:
            columns["type"] = [self._name_of_type(job) for job in jobs]
        columns["delivery"] = [job.deliveries for job in jobs]
        columns["generation"] = [job.generation for job in jobs]
        columns["ready_ms"] = self._ready_of_all(jobs)
        columns["delivered_ms"] = [job.delivered_ms for job in jobs]
        columns["begun_ms"] = self._begun_ms(items)
        columns["run_ms"] = [item.run_ms for item in items]
        return encode_rows(self._head_of_many, entries, columns).encode()

    def _open_facts(self, job: Job) -> bytes:
        ready_ms = self._ready_ms(job)
        ready = b"" if ready_ms is None else b',"ready_ms":%d' % ready_ms
        return b'%b%b,"entry":"%b","delivery":%d,"generation":%d,"enqueued_ms":%d%b,"delivered_ms":%d' % (
            self._head, self._type_of(job) if self._type_field else b"", job.raw_entry_id, job.deliveries,
            job.generation, job.first_ms, ready, job.delivered_ms,
        )  # fmt: skip

    def _ready_ms(self, job: Job) -> int | None:
        """Return when this delivery could be read, in ms of the server's clock; None if that is not known."""
        if job.has_unknown_wait:
            return None
        if job.times_delivered > 1:  # the worker that recovers a delivery by claiming it gets it at once
            return job.delivered_ms if self._claims else None
        ready_ms = entry_ms(job.raw_entry_id)
        return ready_ms if ready_ms >= OLDEST_AUTOMATIC_ID_MS else None

    def _ready_of_all(self, jobs: Sequence[Job]) -> Sequence[int | None]:
        """Return the same of many deliveries."""
        if [job.times_delivered for job in jobs].count(1) == len(jobs):
            ready = [int(job.raw_entry_id.partition(b"-")[0]) for job in jobs]  # `entry_ms`, at half its cost
            if min(ready) >= OLDEST_AUTOMATIC_ID_MS:
                return ready
        return list(map(self._ready_ms, jobs))

    def _begun_ms(self, items: Sequence[Ended[Job]]) -> Sequence[int | None]:
        """Return when each handler began, in ms of the server's clock; None if it never began."""
        offset_ms = self._now_ms() - monotonic() * 1000
        return [
            None if item.started == -inf else max(item.job.delivered_ms, int(offset_ms + item.started * 1000))
            for item in items
        ]

    def _type_of(self, job: Job) -> bytes:
        name = self._name_of_type(job)
        return b"" if name is None else b',"type":%b' % json.dumps(name).encode()

    def _name_of_type(self, job: Job) -> str | None:
        value = job.value_of(self._type_field)
        if not value:
            return None
        value = value[:_MAX_TYPE_BYTES]
        known = self._types.get(value)
        if known is None:
            if len(self._types) >= _TYPES_KEPT:  # the field is no type: nearly every job has another value
                self._types.clear()
            known = self._types[value] = on_one_line(value)[:MAX_TYPE_LENGTH]
        return known


def _machine_ms() -> int:
    return time_ns() // 1_000_000
