"""The facts a worker journals about its deliveries, built fast: this is done for every job."""

import json

from workers.loop.job import Job
from workers.protocol.calls.settlement import Verdict
from workers.protocol.events import encode_data
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
        self._head = encode_data({"group": group, "consumer": consumer, "mode": mode.value}).removesuffix("}").encode()
        self._type_field = type_field.encode()
        self._types: dict[bytes, bytes] = {}
        """What is written of a type, by the value of the field."""

    def of_delivery(self, job: Job) -> bytes:
        """Say which delivery it is, since when the job exists, and how long this entry waited to be delivered."""
        return self._open_facts(job) + b"}"

    def of_settlement(self, job: Job, verdict: Verdict, run_ms: int) -> bytes:
        """Say everything a report needs about the end of a delivery, without looking at earlier events."""
        facts = b'%b,"run_ms":%d' % (self._open_facts(job), run_ms)
        return b'%b,"error":%b}' % (facts, json.dumps(verdict.error).encode()) if verdict.error else facts + b"}"

    def _open_facts(self, job: Job) -> bytes:
        entry_id, delivered_ms = job.raw_entry_id, job.delivered_ms
        ready_ms = job.first_ms if job.raw_id is entry_id else entry_ms(entry_id)
        facts = b'%b%b,"entry":"%b","delivery":%d,"generation":%d,"enqueued_ms":%d,"delivered_ms":%d' % (
            self._head, self._type_of(job) if self._type_field else b"", entry_id, job.deliveries, job.generation,
            job.first_ms, delivered_ms,
        )  # fmt: skip
        if ready_ms < OLDEST_AUTOMATIC_ID_MS:
            return facts
        return b'%b,"wait_ms":%d' % (facts, delivered_ms - ready_ms if delivered_ms > ready_ms else 0)

    def _type_of(self, job: Job) -> bytes:
        value = job.value_of(self._type_field)
        if not value:
            return b""
        value = value[:_MAX_TYPE_BYTES]
        known = self._types.get(value)
        if known is None:
            if len(self._types) >= _TYPES_KEPT:  # it is no type, but something that every job has another one of
                self._types.clear()
            known = self._types[value] = b',"type":%b' % json.dumps(on_one_line(value)[:MAX_TYPE_LENGTH]).encode()
        return known
