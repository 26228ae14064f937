"""Builds the facts that a worker journals about its deliveries. It runs for every job, so it must be fast."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from workers.loop.in_flight import Delivery
from workers.protocol.events import UNKNOWN
from workers.protocol.messages import entry_ms, on_one_line
from workers.runtime.clock import monotonic
from workers.settings import WorkerSettings

MAX_TYPE_LENGTH = 64
"""Characters of a job's type that are journaled."""


class DeliveryFacts:
    """Builds the facts of lifecycle events of one worker, as flat fields."""

    def __init__(self, settings: WorkerSettings, now_ms: Callable[[], int]) -> None:
        """``now_ms`` returns the server's time in ms."""
        self._mode = settings.recovery.value
        self._type_field = settings.job_type_field.encode()
        self._now_ms = now_ms

    def of_settlement(self, job: Delivery) -> list[str | int]:
        """Return flat fields about the end of a delivery, so that a report needs no earlier events.

        The script adds entry, consumer, group and delivery.
        """
        fields = self.of_acks([job])
        return [*fields, "error", job.verdict.error] if job.verdict.error else fields

    def of_acks(self, jobs: Sequence[Delivery]) -> list[str | int]:
        """Return the same of many deliveries, as columns of values with commas. Hot."""
        columns: dict[str, Sequence[Any]] = {}
        if False in [job.is_as_produced for job in jobs]:  # otherwise the entry IDs contain these facts
            columns["job"] = [job.id for job in jobs]
            columns["enqueued_ms"] = [job.first_ms for job in jobs]
            columns["generation"] = [job.generation for job in jobs]
        if self._type_field:
            types = ((job.value_of(self._type_field) or b"")[: 4 * MAX_TYPE_LENGTH] for job in jobs)
            columns["type"] = [_type_name(one) for one in types]
        columns["delivery"] = [job.deliveries for job in jobs]
        if [job.times_delivered for job in jobs].count(1) != len(jobs):  # otherwise the entry IDs contain it
            columns["ready_ms"] = [entry_ms(job.raw_entry_id) if job.times_delivered == 1 else UNKNOWN for job in jobs]
        columns["delivered_ms"] = [job.delivered_ms for job in jobs]
        offset_ms = self._now_ms() - monotonic() * 1000
        begun_ms = {begun: int(offset_ms + begun * 1000) for begun in {job.started for job in jobs} - {-inf}}
        columns["begun_ms"] = [
            max(job.delivered_ms, begun_ms[job.started]) if job.started in begun_ms else None for job in jobs
        ]
        columns["run_ms"] = [job.run_ms for job in jobs]
        fields: list[str | int] = ["mode", self._mode]
        for name, values in columns.items():
            first = values[0]
            if values.count(first) == len(values):
                if first is not None and first != "":
                    fields += (name, first)
            else:  # a batch has few different values
                shown = {value: "" if value is None else str(value) for value in set(values)}
                fields += (name, ",".join(map(shown.__getitem__, values)))
        return fields


@lru_cache(maxsize=1_000)
def _type_name(value: bytes) -> str:
    return on_one_line(value)[:MAX_TYPE_LENGTH].replace(",", "_")
