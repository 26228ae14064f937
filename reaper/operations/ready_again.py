"""Makes jobs ready again: dead letters as a next generation (redrive), and lost deliveries (requeue).

One script checks, copies and deletes each entry, in batches. So each batch can be the last one.
"""

import math
from collections.abc import AsyncIterable, AsyncIterator, Container, Sequence
from dataclasses import dataclass
from enum import StrEnum

import anyio
from redis.asyncio import Redis

from reaper.operations.lost_deliveries import Entry
from reaper.settings import ReaperSettings
from workers.protocol.calls import CALL_BYTES, GroupCalls
from workers.protocol.errors import NotPossibleError
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Redelivery, text
from workers.protocol.scripts import load_script

READY_AGAIN = load_script("reaper", "ready_again")
BATCH = 100
MAX_GENERATION = 5
"""A job of this generation dies each time, so it is redriven only by force."""


class Outcome(StrEnum):
    """The outcome for one entry. The scripts return all but the last two."""

    DONE = "done"
    MISSING = "missing"
    """The entry does not exist: it was deleted, or made ready before."""
    LOOPED = "looped"
    """The loop guard stopped it."""
    UNDELIVERABLE = "undeliverable"
    """It cannot be copied."""
    PENDING = "pending"
    """A worker has it, or recovery will make it ready."""
    READY = "ready"
    """The group has not delivered it yet."""
    PUT_OFF = "put_off"
    """The call had no room for it."""
    SETTLED = "settled"
    """The journal says that it was settled or requeued."""
    UNKNOWN = "unknown"
    """It does not exist after a call whose reply was lost: that call most likely made it ready."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one entry."""

    entry_id: str
    outcome: Outcome
    detail: str = ""
    """The new entry ID (done), the generation (looped), or the reason (undeliverable)."""
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class How:
    """How jobs become ready again."""

    policy: Redelivery = Redelivery.STREAM
    """For a group without settings."""
    journal_limit: int = DEFAULT_JOURNAL_MAXLEN
    """Length of the journal; 0 = none is written."""
    dry_run: bool = False
    is_forced: bool = False
    """Redrive jobs of every generation."""
    rate: float | None = None
    """Dead letters per second. None = no limit."""

    @staticmethod
    def of(settings: ReaperSettings, *, dry_run: bool) -> "How":
        """Return the ways that the settings determine."""
        return How(settings.redelivery, settings.journal_limit, dry_run)

    @property
    def batch(self) -> int:
        """Dead letters per call. With a rate, those of a tenth of a second, so that the flow is even."""
        return BATCH if self.rate is None else max(1, min(BATCH, math.floor(self.rate / 10)))


async def redrive(client: Redis, keys: GroupKeys, ids: AsyncIterable[str], how: How) -> AsyncIterator[Result]:
    """Make dead letters ready again. Yield a result for each. A lost reply never redrives a job twice.

    Raises NotPossibleError if the group does not exist, and redis-py's errors.
    """
    started, sent = anyio.current_time(), 0
    async for batch in _batches(ids, how.batch):
        if how.rate and not how.dry_run:
            await anyio.sleep_until(started + sent / how.rate)
        async for result in _run(client, keys, keys.dead, how, batch):
            yield result
        sent += len(batch)


async def requeue(
    client: Redis, keys: GroupKeys, entries: Sequence[Entry], ended: Container[str], how: How
) -> AsyncIterator[Result]:
    """Make lost deliveries ready again, except for those that have ``ended``. Yield a result for each.

    Raises NotPossibleError if the group does not exist, and redis-py's errors.
    """
    by_source: dict[str, list[str]] = {keys.stream: [], keys.retry: []}
    for entry in entries:
        if entry.entry_id in ended:
            yield Result(entry.entry_id, Outcome.SETTLED)
        else:
            by_source[keys.retry if entry.is_retry else keys.stream].append(entry.entry_id)
    in_either = {entry.entry_id for entry in entries if entry.is_retry is None}
    for source, ids in by_source.items():
        for first in range(0, len(ids), BATCH):
            async for result in _run(client, keys, source, how, ids[first : first + BATCH]):
                if source == keys.stream and result.outcome is Outcome.MISSING and result.entry_id in in_either:
                    by_source[keys.retry].append(result.entry_id)
                else:
                    yield result


async def _batches(ids: AsyncIterable[str], size: int) -> AsyncIterator[list[str]]:
    batch: list[str] = []
    async for entry_id in ids:
        batch.append(entry_id)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def _run(client: Redis, keys: GroupKeys, source: str, how: How, ids: Sequence[str]) -> AsyncIterator[Result]:
    """Run the script until it has decided about all entries."""
    calls, highest = GroupCalls(keys, how.journal_limit), "" if how.is_forced else str(MAX_GENERATION)
    while ids:
        call = calls.spell(source, how.policy, int(how.dry_run), CALL_BYTES, highest, *ids)
        if source == keys.dead:  # each dead letter is deleted, so a repeated call finds none that was redriven
            reply, was_lost = await READY_AGAIN.run_until_answered(client, *call)
        else:
            reply, was_lost = await READY_AGAIN.run(client, *call), False
        if reply[0] != b"ok":
            raise NotPossibleError(
                f"group {keys.pair!r} does not exist, so no worker would read the jobs. Create the group, or start its "
                "workers."
            )
        put_off = []
        for entry_id, (code, detail, job_id) in zip(ids, reply[1:], strict=True):
            outcome = Outcome(text(code))
            if outcome is Outcome.PUT_OFF:
                put_off.append(entry_id)
                continue
            if outcome is Outcome.MISSING and was_lost:
                outcome = Outcome.UNKNOWN
            yield Result(entry_id, outcome, text(detail), text(job_id))
        ids = put_off
