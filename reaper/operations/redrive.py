"""Redrives dead letters. Their jobs become ready again, as a next generation whose deliveries count from 0.

One script checks, copies and deletes each dead letter. So a lost reply never redrives a job twice.
"""

import math
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from time import time_ns
from typing import Any, NamedTuple

import anyio
from opentelemetry.trace import SpanKind
from redis.asyncio import Redis

from reaper.settings import ReaperSettings
from workers.protocol.calls import CALL_BYTES, GroupCalls
from workers.protocol.errors import NotPossibleError
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Redelivery, text, told
from workers.protocol.scripts import load_script
from workers.telemetry import names as telemetry
from workers.telemetry.deliveries import begin, read_context
from workers.telemetry.names import Attributes

REDRIVE_BATCH = 100
DEFAULT_MAX_GENERATION = 5


class RedriveOutcome(IntEnum):
    """The outcome for one dead letter. Numbers as in ``redrive_dead_letters.lua``, but for `UNKNOWN`."""

    MISSING = 0
    REDRIVEN = 1
    LOOPED = 2
    UNDELIVERABLE = 3
    PUT_OFF = 4
    UNKNOWN = 5
    """Not there any more after a call whose reply was lost: most likely redriven by it."""


class TracedJob(NamedTuple):
    """The facts that ``redrive_dead_letters.lua`` returns of a traced job."""

    traceparent: bytes
    tracestate: bytes
    generation: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """Result for one dead letter. ``detail`` is the new entry ID, its generation (looped), or a reason."""

    entry_id: str
    outcome: RedriveOutcome
    detail: str
    job_id: str
    target: str
    """Stream where the job is ready again."""
    traced: TracedJob | None = None


@dataclass(frozen=True, slots=True)
class Redrive:
    """How dead letters are redriven."""

    policy: Redelivery = Redelivery.STREAM
    """Where the group has agreed on none."""
    max_generation: int | None = DEFAULT_MAX_GENERATION
    """Jobs of this generation are not redriven again (they die each time); None = no guard."""
    dry_run: bool = False
    rate: float | None = None
    """Dead letters per second; None = as fast as it goes."""
    journal_limit: int = DEFAULT_JOURNAL_MAXLEN
    """Length of the journal; 0 = none is written."""

    @property
    def batch(self) -> int:
        """Dead letters per call. With a rate, as many as fit into a tenth of a second, so that the flow is even."""
        return REDRIVE_BATCH if self.rate is None else max(1, min(REDRIVE_BATCH, math.floor(self.rate / 10)))


def redrive_as_set(settings: ReaperSettings) -> Redrive:
    """Return how dead letters are redriven by commands, unless more is said."""
    return Redrive(policy=settings.redelivery, journal_limit=settings.journal_limit)


async def redrive(client: Redis, keys: GroupKeys, ids: AsyncIterable[str], how: Redrive) -> AsyncIterator[Redriven]:
    """Make dead letters ready again; yields one result each, as they are done.

    Raises NotPossibleError if the group does not exist, and redis-py's errors.
    """
    started, sent = anyio.current_time(), 0
    async for batch in _in_batches(ids, how.batch):
        if how.rate and not how.dry_run:
            await anyio.sleep_until(started + sent / how.rate)
        left = batch
        while left:
            results = await _redrive_batch(client, keys, left, how)
            for result in results:
                if result.outcome is not RedriveOutcome.PUT_OFF:
                    yield result
            left = [result.entry_id for result in results if result.outcome is RedriveOutcome.PUT_OFF]
        sent += len(batch)


async def _in_batches(items: AsyncIterable[str], size: int) -> AsyncIterator[list[str]]:
    """Group ``items`` into lists of at most ``size``."""
    batch: list[str] = []
    async for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


# --- the script ---------------------------------------------------------------------------------------------


async def _redrive_batch(client: Redis, keys: GroupKeys, ids: Sequence[str], how: Redrive) -> list[Redriven]:
    """Redrive as many of ``ids`` as one call can. A repeated call, after a lost reply, finds redriven ones gone."""
    began_ns = time_ns()
    highest = "" if how.max_generation is None else how.max_generation
    words = GroupCalls(keys, how.journal_limit).spell(
        keys.dead, how.policy, int(how.dry_run), CALL_BYTES, highest, *ids
    )
    script = load_script("reaper", "redrive_dead_letters")
    reply, reply_was_lost = await script.run_until_answered(client, *words)
    if reply[0] != b"ok":
        raise NotPossibleError(
            f"cannot redrive: group {keys.pair!r} does not exist, so no worker would read the jobs. Create the group, "
            "or start its workers."
        )
    target = keys.stream if reply[1] == b"stream" else keys.retry
    results = [_result(entry_id, row, target, reply_was_lost) for entry_id, row in zip(ids, reply[2:], strict=True)]
    if telemetry.is_tracing():
        ended_ns = time_ns()
        for result in results:
            _emit(keys, result, began_ns, ended_ns)
    return results


def _result(entry_id: str, row: Sequence[Any], target: str, reply_was_lost: bool) -> Redriven:
    code, detail, job_id, *traced = row
    outcome = RedriveOutcome(code)
    if outcome is RedriveOutcome.MISSING and reply_was_lost:
        outcome = RedriveOutcome.UNKNOWN
    return Redriven(entry_id, outcome, told(detail), text(job_id), target, TracedJob(*traced[0]) if traced else None)


# --- telemetry ----------------------------------------------------------------------------------------------


def _emit(keys: GroupKeys, result: Redriven, began_ns: int, ended_ns: int) -> None:
    """Write a span in the trace of a job that is ready again."""
    traced = result.traced
    creation = traced and read_context(traced.traceparent, traced.tracestate)
    if traced is None or creation is None:
        return  # the producer's trace is not sampled
    about: Attributes = {
        telemetry.MESSAGE_ID: result.detail,
        telemetry.JOB_ID: result.job_id,
        telemetry.GENERATION: traced.generation,
    }
    common = telemetry.common(telemetry.REDRIVE, telemetry.SETTLE, keys.stream, keys.group)
    name = f"{telemetry.REDRIVE} {keys.stream}"
    begin(name, creation, SpanKind.CLIENT, {**common, **about}, at_ns=began_ns).end(ended_ns)
