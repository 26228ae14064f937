"""The reports of a worker to people and programs, as log lines, callbacks and counts."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from workers.loop.held import Held
from workers.loop.job import Job
from workers.loop.telemetry import WorkerTelemetry
from workers.protocol.calls.recovery import Page
from workers.protocol.calls.refusals import explained
from workers.protocol.calls.settlement import Verdict
from workers.protocol.keys import GroupKeys
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_contact_error
from workers.protocol.messages import first_of, on_one_line, text
from workers.runtime.callbacks import Callbacks
from workers.runtime.clock import monotonic
from workers.runtime.redis_failures import RedisFailures
from workers.runtime.user_code import describe, log_failure

logger = logging.getLogger("workers")

WorkerEvent = Literal["recovered", "dead_lettered", "refused", "held", "error"]
EVENTS: frozenset[str] = frozenset({"recovered", "dead_lettered", "refused", "held", "error"})


@dataclass(slots=True)
class Counts:
    """Counters of one run of a worker."""

    read: int = 0
    """Deliveries that came by reading the streams, also those that were found again after a lost reply."""
    claimed: int = 0
    """Stalled deliveries taken over from their consumers (embedded recovery)."""
    acked: int = 0
    nacked: int = 0
    """Failed, or to be tried again: ready again, or scheduled."""
    dead_lettered: int = 0
    refused: int = 0
    """The delivery was not ours any more: recovered, or taken by another process."""
    timed_out: int = 0
    """Ran longer than they may; they count among the failed ones as well."""
    handed_back: int = 0
    """Not started when the worker stopped, or cancelled at the drain deadline: ready again, and not counted."""
    lost: int = 0
    """Failed, or were to be handed back, and their entries had been deleted: they do not run again."""
    held: int = 0
    """Could not be made ready or dead-lettered; left pending."""
    abandoned: int = 0
    """Neither settled nor handed back at the end; left pending."""

    def facts(self) -> dict[str, int]:
        """Return the counters that are not 0, for a log line."""
        return {name: count for name, count in asdict(self).items() if count}


class Reporter:
    """Reports the deliveries of one consumer, and whether Redis serves it."""

    def __init__(
        self,
        keys: GroupKeys,
        consumer: str,
        callbacks: Callbacks[str],
        counts: Counts,
        telemetry: WorkerTelemetry | None,
    ) -> None:
        self.counts = counts
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
                "cannot reach Redis, retrying: %s" if is_contact_error(error) else "Redis rejects a call, retrying: %s",
                fields(consumer=self._consumer, part=part, cause=in_words(error)),
            )
            self._callbacks.report("error", part=part, error=str(error))

    def works(self, part: str) -> None:
        """Note that ``part`` works (again)."""
        ended = self.troubles.works(part, monotonic())
        if ended:
            logger.warning("Redis answers again: %s", fields(consumer=self._consumer, part=part, **ended))

    # ---- deliveries

    def claimed(self, deliveries: Sequence[Held], page: Page, visibility_s: float) -> None:
        """Note that the stalled deliveries of a page were taken over."""
        self.counts.claimed += len(deliveries)
        wanted = self._callbacks.wants("recovered")
        for held, one in zip(deliveries, page.claimed, strict=True) if wanted or self._telemetry else ():
            owner = text(one.owner)
            if self._telemetry:
                self._telemetry.taken_over(held, owner, one.idle_ms, visibility_s)
            if wanted:
                self._callbacks.report("recovered", **self._facts(held), owner=owner, idle_ms=one.idle_ms)

    def watches_losses(self) -> None:
        """Note that this worker reports destroyed groups from now on."""
        if self._telemetry:
            self._telemetry.lost()

    def group_was_lost(self) -> None:
        """Note that the group was destroyed and made again, or that all of its consumers were deleted."""
        if self._telemetry:
            self._telemetry.lost(groups=1)
        logger.error("the group was destroyed, or all of its consumers were deleted: %s", fields(group=self._keys.pair))
        self._callbacks.report("error", part="recovering", error="group_destroyed")

    def consumer_was_lost(self, consumer: bytes) -> None:
        """Note that a consumer was deleted with its deliveries. It was a dead worker's, or a foreign one."""
        if self._telemetry:
            self._telemetry.lost(consumers=1)
        self._callbacks.report("error", part="recovering", error="lost_consumer", consumer=text(consumer))

    def recovered(self, job_id: str, **facts: Any) -> None:
        """Note that a stalled delivery was made ready again. ``facts`` as in the journal."""
        if self._callbacks.wants("recovered"):
            self._callbacks.report("recovered", stream=self._keys.stream, group=self._keys.group, job=job_id, **facts)

    def lost_payload(self, source: str, entry_id: str) -> None:
        """Note that a pending entry was deleted. It was acknowledged."""
        logger.error("entry was deleted while pending, its payload is lost: %s", fields(source=source, entry=entry_id))
        self._callbacks.report("error", part="recovering", error=f"lost_payload: entry {entry_id} of {source}")

    def deleted(self, job: Job) -> None:
        """Note that the entry of a job in hand was deleted with its pending reference. Only this worker can run it."""
        logger.error("entry of a running job was deleted: %s", fields(**self._delivery(job)))
        self._callbacks.report("error", **self._facts(job), error="lost_payload")

    def lost(self, job: Job, verdict: Verdict) -> None:
        """Note that a job cannot run again, as its verdict asks for, because its entry was deleted."""
        self.counts.lost += 1
        logger.error(
            "job is lost, its entry was deleted before it succeeded: %s",
            fields(**self._delivery(job), verb=verdict.outcome, cause=verdict.error or None),
        )
        self._callbacks.report("error", **self._facts(job), error="lost_payload")

    def exited(self, job: Job, error: BaseException) -> str:
        """Note that the handler of a delivery raised SystemExit or KeyboardInterrupt, which ends the worker.

        Returns a sentence about it.
        """
        cause = describe(error)
        log_failure(
            logger,
            logging.ERROR,
            error,
            "a handler stopped the worker: %s",
            fields(**self._delivery(job), cause=cause),
        )
        return f"the handler of job {on_one_line(job.id)} of {self._keys.pair} ended the worker: {on_one_line(cause)}"

    def dead_lettered(self, job: Job, verdict: Verdict, dead_letter: str, limit: int) -> None:
        """Note that a delivery of ours ended as a dead letter."""
        self.write_dead_letter(
            job.id,
            entry=job.entry_id,
            delivery=job.deliveries,
            limit=limit,
            consumer=self._consumer,
            reason=verdict.reason,
            error=verdict.error,
            dead_letter=dead_letter,
        )

    def write_dead_letter(self, job_id: str, *, limit: int, **facts: Any) -> None:
        """Write the one line that every dead letter gets. ``facts`` as in the journal."""
        self.counts.dead_lettered += 1
        logger.error(
            "job dead-lettered: %s",  # as in `reaper.recovery.notes`, so that one alert finds both
            fields(
                group=self._keys.pair,
                job=job_id,
                dead_letter=facts["dead_letter"],
                limit=limit,
                consumer=facts["consumer"],
                reason=facts["reason"],
                cause=facts["error"] or None,
            ),
        )
        self._callbacks.report(
            "dead_lettered", stream=self._keys.stream, group=self._keys.group, job=job_id, limit=limit, **facts
        )

    def refused(self, job: Job, verb: str, run_ms: int) -> None:
        """Note that a settlement came too late."""
        self.counts.refused += 1
        logger.warning(
            "settlement rejected, the job was recovered or another process uses this consumer name: %s",
            fields(**self._delivery(job), verb=verb, run_ms=run_ms),
        )
        if self._callbacks.wants("refused"):
            self._callbacks.report("refused", **self._facts(job), verb=verb)

    def taken_back(self, source: str, number: int) -> None:
        """Note that vanished deliveries were made ours again."""
        if number:
            logger.error(
                "restored running deliveries that a third party or a clock change had removed: %s",
                fields(source=source, consumer=self._consumer, deliveries=number),
            )

    def timed_out(self, job: Job, *, goes_on: bool) -> None:
        """Note that a delivery ran too long. If its handler ``goes_on``, it cannot be stopped."""
        self.counts.timed_out += 1
        logger.warning(
            "job exceeded its timeout: %s",
            fields(
                **self._delivery(job),
                timeout_s=job.timeout_s,
                handler="continues in its thread" if goes_on else "cancelled",
            ),
        )

    def left_running(self, jobs: Sequence[Job]) -> None:
        """Note that handlers go on although they were cancelled."""
        if jobs:
            logger.warning(
                "cancelled handlers did not end, the worker does not wait for them: %s",
                fields(consumer=self._consumer, handlers=len(jobs), jobs=first_of([job.raw_id for job in jobs])),
            )

    def held(self, job: Job, verdict: Verdict, why: str) -> None:
        """Note that a delivery could neither be made ready nor dead-lettered."""
        self.counts.held += 1
        logger.error(
            "cannot redeliver or dead-letter a failed job, its entry stays pending: %s",
            fields(**self._delivery(job), failure=verdict.error or verdict.reason, cause=explained(why)),
        )
        if self._callbacks.wants("held"):
            self._callbacks.report("held", **self._facts(job), why=why)

    def _delivery(self, job: Job) -> dict[str, Any]:
        """Return the fields of each log line about a delivery."""
        return {
            "group": self._keys.pair,
            "job": job.id,
            "entry": job.entry_id,
            "delivery": job.deliveries,
            "consumer": self._consumer,
        }

    def _facts(self, job: Job) -> dict[str, Any]:
        """Return the facts of each callback about a delivery."""
        return {
            "stream": job.stream,
            "group": self._keys.group,
            "job": job.id,
            "entry": job.entry_id,
            "consumer": self._consumer,
            "delivery": job.deliveries,
            "generation": job.generation,
        }
