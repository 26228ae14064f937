"""The reports of a worker to people and programs, as log lines, callbacks and counts."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from workers.loop.job import Job
from workers.loop.telemetry import WorkerTelemetry
from workers.protocol.calls.declined import explained
from workers.protocol.calls.moves import Verdict
from workers.protocol.keys import GroupKeys
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_contact_error
from workers.protocol.messages import first_of, on_one_line, text
from workers.runtime.callbacks import Callbacks
from workers.runtime.clock import monotonic
from workers.runtime.redis_failures import RedisFailures
from workers.runtime.user_code import describe

logger = logging.getLogger("workers")

WorkerEvent = Literal["recovered", "dead_lettered", "rejected", "held", "error"]
EVENTS: frozenset[str] = frozenset(get_args(WorkerEvent))


@dataclass(slots=True)
class Counts:
    """Counters of one run of a worker."""

    read: int = 0
    """Deliveries from the streams, also those that were found again after a lost reply."""
    acked: int = 0
    nacked: int = 0
    """Failed jobs, and jobs to retry."""
    dead_lettered: int = 0
    rejected: int = 0
    """Rejected settlements and extensions, because the delivery was recovered."""
    timed_out: int = 0
    """Jobs that exceeded their timeout. They count as failed, too."""
    handed_back: int = 0
    """Jobs that the worker returned when it stopped, without counting their delivery."""
    lost: int = 0
    """Failed jobs that do not run again, because their entries were deleted."""
    held: int = 0
    """Undeliverable jobs, which stay pending."""
    abandoned: int = 0
    """Jobs that were neither settled nor handed back at the end, and stay pending."""

    def facts(self) -> dict[str, int]:
        """Return the counters that are not 0, for a log line."""
        return {name: count for name, count in asdict(self).items() if count}


class Reporter:
    """Reports the deliveries of one consumer, and whether Redis serves it."""

    def __init__(self, keys: GroupKeys, consumer: str, callbacks: Callbacks, telemetry: WorkerTelemetry) -> None:
        self.counts = Counts()
        self._telemetry = telemetry
        self._keys = keys
        self._consumer = consumer
        self._callbacks = callbacks
        self.troubles = RedisFailures()

    # ---- whether Redis serves us

    def failed(self, part: str, error: BaseException) -> None:
        """Note that ``part`` (``reading``, ``settling``, …) could not do its work."""
        if self.troubles.failed(part, error, monotonic()):
            logger.error(
                "cannot reach Redis, retrying: %s" if is_contact_error(error) else "Redis denies a call, retrying: %s",
                fields(consumer=self._consumer, part=part, cause=in_words(error)),
            )
            self._callbacks.report("error", part=part, error=str(error))

    def works(self, part: str) -> None:
        """Note that ``part`` works, perhaps again."""
        ended = self.troubles.works(part, monotonic())
        if ended:
            logger.warning("Redis answers again: %s", fields(consumer=self._consumer, part=part, **ended))

    # ---- settlements of ours

    def rejected(self, job: Job, verb: str, run_ms: int) -> None:
        """Report that a settlement or an extension came too late."""
        self.counts.rejected += 1
        logger.warning(
            "settlement rejected, the job was recovered, its consumer deleted, or another process uses this name: %s",
            fields(**self._delivery(job), verb=verb, run_ms=run_ms),
        )
        self._call_back("rejected", job, verb=verb)

    def lost(self, job: Job, verdict: Verdict) -> None:
        """Report that a job cannot run again, because its entry was deleted."""
        self.counts.lost += 1
        logger.error(
            "job is lost, its entry was deleted before it succeeded: %s",
            fields(**self._delivery(job), verb=verdict.outcome, cause=verdict.error or None),
        )
        self._call_back("error", job, error="lost_payload")

    def held(self, job: Job, verdict: Verdict, why: str) -> None:
        """Report that a delivery could neither be made ready nor dead-lettered."""
        self.counts.held += 1
        logger.error(
            "cannot redeliver or dead-letter a failed job, its entry stays pending: %s",
            fields(**self._delivery(job), failure=verdict.error or "none", cause=explained(why)),
        )
        self._call_back("held", job, why=why)

    def dead_lettered(self, job_id: str, *, limit: int, **facts: Any) -> None:
        """Report a dead letter. ``facts`` as in the journal."""
        self.counts.dead_lettered += 1
        logger.error(
            "job dead-lettered: %s",  # as in `reaper.recovery.notes`, so that one alert finds both
            fields(
                group=self._keys.name,
                job=job_id,
                dead_letter=facts["dead_letter"],
                limit=limit,
                consumer=facts["consumer"],
                reason=facts["reason"],
                cause=facts["error"] or None,
            ),
        )
        self._callbacks.report("dead_lettered", **self._group(), job=job_id, limit=limit, **facts)

    # ---- handlers

    def timed_out(self, job: Job, *, goes_on: bool) -> None:
        """Report that a delivery exceeded its timeout. If its handler ``goes_on``, it cannot be stopped."""
        self.counts.timed_out += 1
        handler = "continues in its thread" if goes_on else "cancelled"
        logger.warning(
            "job exceeded its timeout: %s", fields(**self._delivery(job), timeout_s=job.timeout_s, handler=handler)
        )

    def exited(self, job: Job, error: BaseException) -> str:
        """Report that a handler raised SystemExit or KeyboardInterrupt, which ends the worker. Returns a sentence."""
        cause = describe(error)
        logger.error("a handler stopped the worker: %s", fields(**self._delivery(job), cause=cause), exc_info=error)
        return f"the handler of job {on_one_line(job.id)} of {self._keys.name} ended the worker: {on_one_line(cause)}"

    def left_running(self, jobs: Sequence[Job]) -> None:
        """Report handlers that continue although they were cancelled."""
        if jobs:
            logger.warning(
                "cancelled handlers did not end, the worker does not wait for them: %s",
                fields(consumer=self._consumer, handlers=len(jobs), jobs=first_of([job.raw_id for job in jobs])),
            )

    # ---- recovery

    @property
    def wants_recoveries(self) -> bool:
        """Whether a callback wants to know each recovered delivery."""
        return self._callbacks.wants("recovered")

    def recovered(self, job_id: str, **facts: Any) -> None:
        """Report that a stalled delivery was made ready again. ``facts`` as in the journal."""
        self._callbacks.report("recovered", **self._group(), job=job_id, **facts)

    def taken_back(self, number: int) -> None:
        """Report vanished deliveries that are ours again."""
        if number:
            logger.error(
                "restored running deliveries that a third party had removed: %s",
                fields(group=self._keys.name, consumer=self._consumer, deliveries=number),
            )

    def lost_payload(self, source: str, entry_id: str) -> None:
        """Report that a pending entry was deleted. It was acknowledged."""
        logger.error(
            "entry was deleted while pending, its payload is lost: %s", fields(group=self._keys.name, entry=entry_id)
        )
        self._callbacks.report("error", part="recovering", error=f"lost_payload: entry {entry_id} of {source}")

    def group_was_lost(self) -> None:
        """Report that the group was destroyed and made again, or that all of its consumers were deleted."""
        self._telemetry.lost(groups=1)
        logger.error("the group was destroyed, or all of its consumers were deleted: %s", fields(group=self._keys.name))
        self._callbacks.report("error", part="recovering", error="group_destroyed")

    def consumer_was_lost(self, consumer: bytes) -> None:
        """Report that a consumer was deleted with its deliveries."""
        self._telemetry.lost(consumers=1)
        self._callbacks.report("error", part="recovering", error="lost_consumer", consumer=text(consumer))

    # ---- forms

    def _delivery(self, job: Job) -> dict[str, Any]:
        """Return the fields of a log line about a delivery."""
        about = {"group": self._keys.name, "job": job.id, "entry": job.entry_id, "delivery": job.deliveries}
        return about | {"consumer": self._consumer}

    def _call_back(self, event: WorkerEvent, job: Job, **more: Any) -> None:
        """Report a delivery to the callbacks of ``event``."""
        if self._callbacks.wants(event):
            self._callbacks.report(event, **self._delivery(job) | self._group(), generation=job.generation, **more)

    def _group(self) -> dict[str, str]:
        return {"stream": self._keys.stream, "group": self._keys.group}
