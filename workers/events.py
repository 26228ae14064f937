"""The facts a worker journals about its deliveries, built fast: this is done for every job."""

import json

from workers.execution import Verdict
from workers.job import Job
from workers.protocol.events import encode_data
from workers.protocol.messages import RecoveryMode, entry_ms

OLDEST_AUTOMATIC_ID_MS = 1_483_228_800_000
"""2017-01-01. Streams are younger, so an entry ID below it was made by somebody and says nothing about time."""


class DeliveryFacts:
    """Builds the ``data`` of lifecycle events of one consumer, as JSON text without its closing brace."""

    def __init__(self, group: str, consumer: str, mode: RecoveryMode) -> None:
        self._head = encode_data({"group": group, "consumer": consumer, "mode": mode.value}).removesuffix("}")

    def of_delivery(self, job: Job) -> str:
        """Say which delivery it is, since when the job exists, and how long this entry waited to be delivered."""
        entry_id, delivered_ms = job.raw_entry_id, job.delivered_ms
        ready_ms = job.first_ms if job.raw_id is entry_id else entry_ms(entry_id)
        facts = (
            f'{self._head},"entry":"{entry_id.decode()}","delivery":{job.deliveries},"generation":{job.generation},'
            f'"enqueued_ms":{job.first_ms},"delivered_ms":{delivered_ms}'
        )
        if ready_ms < OLDEST_AUTOMATIC_ID_MS:
            return facts
        return f'{facts},"wait_ms":{delivered_ms - ready_ms if delivered_ms > ready_ms else 0}'

    def of_settlement(self, job: Job, verdict: Verdict, run_ms: int) -> str:
        """Say everything a report needs about the end of a delivery, without looking at earlier events."""
        facts = f'{self.of_delivery(job)},"run_ms":{run_ms}'
        return f'{facts},"error":{json.dumps(verdict.error)}' if verdict.error else facts
