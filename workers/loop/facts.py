"""The facts a worker journals about its deliveries, built fast: this is done for every job."""

import json
from collections.abc import Sequence
from typing import Any

from workers.loop.job import Job
from workers.protocol.calls.settlement import Ended, Verdict
from workers.protocol.events import encode_data, encode_rows, head_of_many
from workers.protocol.messages import RecoveryMode, entry_ms, on_one_line

OLDEST_AUTOMATIC_ID_MS = 1_483_228_800_000
"""2017-01-01. Streams are younger, so an entry ID below it was made by somebody and says nothing about time."""


MAX_TYPE_LENGTH = 64
"""Characters of a job's type that are journalled."""
_MAX_TYPE_BYTES = 4 * MAX_TYPE_LENGTH
_TYPES_KEPT = 1_000


class DeliveryFacts:
    """Builds the ``data`` of lifecycle events of one consumer, as JSON.

    ``type_field`` names the payload field that says what type a job has; empty: none does.
    """

    def __init__(self, group: str, consumer: str, mode: RecoveryMode, type_field: str = "") -> None:
        common = {"group": group, "consumer": consumer, "mode": mode.as_journalled}
        self._head = encode_data(common).removesuffix("}").encode()
        self._head_of_many = head_of_many(common)
        self._type_field = type_field.encode()
        self._types: dict[bytes, str] = {}
        """What is told of a type, by the value of the field."""

    def of_delivery(self, job: Job) -> bytes:
        """Say which delivery it is, since when the job exists, and how long this entry waited to be delivered."""
        return self._open_facts(job) + b"}"

    def of_settlement(self, job: Job, verdict: Verdict, run_ms: int) -> bytes:
        """Say everything a report needs about the end of a delivery, without looking at earlier events."""
        facts = b'%b,"run_ms":%d' % (self._open_facts(job), run_ms)
        return b'%b,"error":%b}' % (facts, json.dumps(verdict.error).encode()) if verdict.error else facts + b"}"

    def of_acks(self, items: Sequence[Ended[Job]]) -> bytes:
        """Say the same of many deliveries that were acknowledged, in one. Hot."""
        jobs = [item.job for item in items]
        entries = [job.raw_entry_id for job in jobs]
        ready = [int(entry.partition(b"-")[0]) for entry in entries]  # `entry_ms`, at half its cost
        delivered = [job.delivered_ms for job in jobs]
        columns: dict[str, Sequence[Any]] = {}
        if False in [job.is_as_produced for job in jobs]:  # else the entries tell all that
            columns["job"] = [None if job.raw_id is job.raw_entry_id else job.raw_id for job in jobs]
            columns["enqueued_ms"] = [job.first_ms for job in jobs]
        if self._type_field:
            columns["type"] = [self._name_of_type(job) for job in jobs]
        columns["delivery"] = [job.deliveries for job in jobs]
        columns["generation"] = [job.generation for job in jobs]
        columns["delivered_ms"] = delivered
        columns["wait_ms"] = _waits_ms(ready, delivered)
        columns["run_ms"] = [item.run_ms for item in items]
        return encode_rows(self._head_of_many, entries, columns).encode()

    def _open_facts(self, job: Job) -> bytes:
        facts = b'%b%b,"entry":"%b","delivery":%d,"generation":%d,"enqueued_ms":%d,"delivered_ms":%d' % (
            self._head, self._type_of(job) if self._type_field else b"", job.raw_entry_id, job.deliveries,
            job.generation, job.first_ms, job.delivered_ms,
        )  # fmt: skip
        wait_ms = _wait_ms(entry_ms(job.raw_entry_id), job.delivered_ms)
        return facts if wait_ms is None else b'%b,"wait_ms":%d' % (facts, wait_ms)

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
            if len(self._types) >= _TYPES_KEPT:  # it is no type, but something that every job has another one of
                self._types.clear()
            known = self._types[value] = on_one_line(value)[:MAX_TYPE_LENGTH]
        return known


def _wait_ms(ready_ms: int, delivered_ms: int) -> int | None:
    """Return how long an entry waited to be delivered; None where its ID tells no time."""
    if ready_ms < OLDEST_AUTOMATIC_ID_MS:
        return None
    return delivered_ms - ready_ms if delivered_ms > ready_ms else 0


def _waits_ms(ready: Sequence[int], delivered: Sequence[int]) -> Sequence[int | None]:
    """Return the same of many."""
    if min(ready) < OLDEST_AUTOMATIC_ID_MS:
        return list(map(_wait_ms, ready, delivered))
    return [after - before if after > before else 0 for before, after in zip(ready, delivered, strict=True)]
