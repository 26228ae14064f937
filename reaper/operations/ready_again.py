"""Makes jobs ready again. Dead letters become a next generation (redrive). Lost deliveries are requeued.

One script checks, copies and deletes each entry, in batches. So each batch can be the last one.

Redis loses the deliveries of a consumer or a group that a third party deletes. The reaper reports them with
`lost_delivery` events in the journal. The entries are still in the stream, but no consumer receives them.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import anyio
from redis.asyncio import Redis

from workers.protocol.calls import CALL_BYTES, GroupCalls
from workers.protocol.errors import NotPossibleError
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN, ENDS, EventName, events_of
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Redelivery, is_entry_id, text
from workers.protocol.scripts import load_script

READY_AGAIN = load_script("reaper", "ready_again")
BATCH = 100
PAGE = 1_000
"""Journal entries that one call reads."""
MAX_GENERATION = 5
"""A job of this generation dies each time, so it is redriven only by force."""


class Outcome(StrEnum):
    """The outcome for one entry. The scripts return all but the last two."""

    DONE = "done"
    MISSING = "missing"
    """The entry does not exist, because it was deleted or made ready before."""
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
    """It was settled or requeued, by the journal."""
    UNKNOWN = "unknown"
    """It does not exist after a call whose reply was lost. That call most likely made it ready."""


class Result(NamedTuple):
    """The result for one entry."""

    id: str
    outcome: Outcome
    detail: str = ""
    """The new entry ID (done), the generation (looped), or the reason (undeliverable)."""
    job: str = ""


class Entry(NamedTuple):
    """One entry of the stream or of the group's retry stream. If `is_retry` is None, it may be in either."""

    id: str
    is_retry: bool | None = None


@dataclass(frozen=True, slots=True)
class ReadyAgain:
    """Makes jobs of one group ready again. Its methods yield a result for each entry.

    They raise NotPossibleError if the group does not exist, and redis-py's errors.
    """

    client: Redis
    keys: GroupKeys
    policy: Redelivery = Redelivery.STREAM
    """For a group without settings."""
    journal_limit: int = DEFAULT_JOURNAL_MAXLEN
    """Length of the journal. 0 = none is written."""
    dry_run: bool = False

    async def redrive(
        self, ids: Sequence[str], *, force: bool = False, rate: float | None = None
    ) -> AsyncIterator[Result]:
        """Make dead letters ready again. A lost reply never redrives a job twice.

        ``force`` redrives jobs of every generation. ``rate`` is the most dead letters per second.
        """
        started = anyio.current_time()
        size = max(1, min(BATCH, int(rate / 10))) if rate else BATCH  # calls of a tenth of a second make an even flow
        for first in range(0, len(ids), size):
            if rate and not self.dry_run:
                await anyio.sleep_until(started + first / rate)
            async for result in self._run(self.keys.dead, ids[first : first + size], force=force):
                yield result

    async def requeue(self, named: Sequence[str], since_ms: int) -> AsyncIterator[Result]:
        """Make the lost deliveries with the IDs ``named`` ready again, or all if ``named`` is empty.

        The journal from ``since_ms`` on lists lost deliveries, and entries that were settled or requeued. After all of
        them, the number of lost deliveries, which makes the service degraded, becomes 0.
        """
        lost, ended = await read_lost(self.client, self.keys, since_ms)
        ids: dict[str, list[str]] = {self.keys.stream: [], self.keys.retry: []}
        in_either = set()
        for entry in [Entry(one) for one in named] or lost:
            if entry.id in ended:
                yield Result(entry.id, Outcome.SETTLED)
                continue
            ids[self.keys.retry if entry.is_retry else self.keys.stream].append(entry.id)
            if entry.is_retry is None:
                in_either.add(entry.id)
        for source in ids:
            for first in range(0, len(ids[source]), BATCH):
                async for result in self._run(source, ids[source][first : first + BATCH]):
                    if source == self.keys.stream and result.outcome is Outcome.MISSING and result.id in in_either:
                        ids[self.keys.retry].append(result.id)
                    else:
                        yield result
        if not (named or self.dry_run):
            await self.client.hdel(self.keys.settings, "lost_delivery", "lost_delivery_ms")

    async def _run(self, source: str, ids: Sequence[str], *, force: bool = False) -> AsyncIterator[Result]:
        """Run the script until it has decided about all entries."""
        calls, highest = GroupCalls(self.keys, self.journal_limit), "" if force else str(MAX_GENERATION)
        while ids:
            call = calls.spell(source, self.policy, int(self.dry_run), CALL_BYTES, highest, *ids)
            if source == self.keys.dead:  # each dead letter is deleted, so a repeated call finds none that was redriven
                reply, was_lost = await READY_AGAIN.run_until_answered(self.client, *call)
            else:
                reply, was_lost = await READY_AGAIN.run(self.client, *call), False
            if reply[0] != b"ok":
                raise NotPossibleError(
                    f"group {self.keys.name!r} does not exist, so no worker would read the jobs. Create the group, or "
                    "start its workers."
                )
            put_off = []
            for entry_id, (code, detail, job) in zip(ids, reply[1:], strict=True):
                outcome = Outcome(text(code))
                if outcome is Outcome.PUT_OFF:
                    put_off.append(entry_id)
                    continue
                if outcome is Outcome.MISSING and was_lost:
                    outcome = Outcome.UNKNOWN
                yield Result(entry_id, outcome, text(detail), text(job))
            ids = put_off


async def read_lost(client: Redis, keys: GroupKeys, since_ms: int) -> tuple[list[Entry], set[str]]:
    """Read in the journal since ``since_ms`` which entries are lost, oldest first, and the IDs of those that ended.

    A lost entry was not settled or requeued later. Raises redis-py's errors.
    """
    lost, ended, start = dict[Entry, None](), set[str](), str(max(0, since_ms))
    while start:
        rows: Any = await client.execute_command("XRANGE", keys.journal, start, "+", "COUNT", PAGE)
        for event in (one for row in rows for one in events_of(row[0], row[1] or (), ENDS | {EventName.LOST_DELIVERY})):
            entry_id = str(event.data.get("entry"))
            if event.data.get("group") != keys.group or not is_entry_id(entry_id):  # other programs can write there
                continue
            if event.event == EventName.LOST_DELIVERY:
                lost[Entry(entry_id, event.data.get("source") == "retry")] = None
                ended.discard(entry_id)
            elif event.data.get("new_entry") != entry_id:  # else it became ready where it is, and may be lost again
                ended.add(entry_id)
                for is_retry in (False, True):
                    lost.pop(Entry(entry_id, is_retry), None)
        start = f"({text(rows[-1][0])}" if len(rows) == PAGE else ""
    return list(lost), ended
