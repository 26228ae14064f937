"""What went with consumers that somebody deleted: it waits while its worker may live, and what was settled is left out.

Redis drops what a deleted consumer held, and that looks like an acknowledgement. Three things tell one from the other,
and each is asked: the worker's word (``put_back.lua``), the worker itself, which holds again what it runs as long as it
lives, and the journal, which names what was settled.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from reaper.recovery.writer import GroupWriter, PutBack, StillCounts
from workers.protocol.calls.refusals import Refusal
from workers.protocol.events import EventName, LifecycleEvent, events_of
from workers.protocol.keys import RESTORED_CONSUMER
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import text

BATCH = 1_000
"""Deliveries that are put back in one call."""
PAGE = 1_000
"""Journal entries that are read in one call."""
BEGINNING = b"0-0"

SETTLED = frozenset({EventName.ACKED, EventName.NACKED, EventName.HANDED_BACK, EventName.DEAD_LETTERED})
"""After these, a delivery is nobody's."""
_RESTORED = RESTORED_CONSUMER.encode()
_ENTRY = re.compile(rb'"(\d+-\d+)"')


@dataclass(slots=True)
class Missing:
    """What is gone of what one consumer held, while its worker may live."""

    journal_at: bytes
    """Where the journal ended when all of it was still pending, or before that."""
    ids: dict[bytes, None] = field(default_factory=dict)
    first_ms: int = 0
    """Until when its word counted when it was asked for first, by the server's clock; 0 = it was not."""
    renewed_ms: int = 0
    """The same, when it was seen to be renewed for the first time."""
    noted: int = 0
    """How many of them are noted for the leader that may follow."""

    def is_held_again(self, word: StillCounts) -> bool:
        """Note the word; tell whether the worker has lived for so long that it holds again all that it ran.

        It does that at every beat, several times in a visibility timeout. So it has where it renewed its word once,
        which was after the deletion, and once more a visibility timeout later.
        """
        if not self.first_ms:
            self.first_ms = word.until_ms
        elif word.until_ms > self.first_ms and not self.renewed_ms:
            self.renewed_ms = word.until_ms
        return 0 < self.renewed_ms < word.until_ms - word.visibility_ms


class Dropped:
    """What consumers of one group held that were deleted. Methods raise what redis-py raises."""

    def __init__(self, writer: GroupWriter, missing: dict[tuple[str, bytes], Missing] | None = None) -> None:
        """``missing`` was noted by the watch before: by source and consumer."""
        self._writer = writer
        self._missing = missing or {}

    @property
    def missing(self) -> dict[tuple[str, bytes], Missing]:
        """What was noted, for the watch that follows."""
        return self._missing

    async def journal_position(self) -> bytes:
        """Return where the journal ends; what is settled from now on stands behind."""
        try:
            newest: Any = await self._writer.client.xrevrange(self._writer.keys.journal, "+", "-", 1)
        except ResponseError as error:
            _raise_if_away(error)
            return BEGINNING
        return bytes(newest[0][0]) if newest else BEGINNING

    def note(self, source: str, absent: Mapping[bytes, Sequence[bytes]], journal_at: bytes) -> None:
        """Note what is gone of what ``absent`` consumers held; the journal ended there while it was pending."""
        for consumer, ids in absent.items():
            missing = self._missing.setdefault((source, consumer), Missing(journal_at))
            missing.ids.update(dict.fromkeys(ids))

    def found(self, source: str, pending: Container[bytes]) -> None:
        """Forget what a full scan of ``source`` has found pending again: that is watched as any delivery."""
        for (its_source, _), missing in self._missing.items():
            if its_source == source:
                for entry_id in [one for one in missing.ids if one in pending]:
                    del missing.ids[entry_id]

    def waiting(self, sources: Container[str]) -> list[tuple[str, bytes]]:
        """Return the sources and consumers that something was noted of; forget what is of no source of ``sources``."""
        self._missing = {where: missing for where, missing in self._missing.items() if where[0] in sources}
        return list(self._missing)

    async def take_over(self, source: str, *, made: int) -> None:
        """Take over what waited in an earlier term, in a group ``made`` then."""
        for consumer, (journal_at, ids) in (await self._writer.noted_waiting(source, made=made)).items():
            missing = self._missing.setdefault((source, consumer), Missing(journal_at))
            missing.ids.update(dict.fromkeys(ids))
            missing.noted = len(ids)

    async def _wait_on(self, source: str, consumer: bytes, missing: Missing, *, made: int) -> None:
        """See to it that the leader that may follow knows what waits: of many the first ones."""
        ids = list(islice(missing.ids, BATCH))
        if len(ids) != missing.noted:
            await self._writer.note_waiting(source, consumer, ids, made=made, journal_at=missing.journal_at)
            missing.noted = len(ids)

    async def put_back(self, source: str, consumer: bytes, *, made: int) -> PutBack | Refusal | None:
        """Put back what went with ``consumer``, in a group ``made`` then; None where its worker may live yet."""
        missing, total = self._missing[source, consumer], PutBack(0, 0)
        answer = await self._writer.put_back(source, consumer, (), made=made)
        if isinstance(answer, PutBack):
            by = None if consumer == _RESTORED else text(consumer)  # from ours, whoever runs it takes it
            for entry_id in await self.settled(missing.ids, missing.journal_at, by=by):
                del missing.ids[entry_id]
        while isinstance(answer, PutBack) and missing.ids:
            batch = list(islice(missing.ids, BATCH))
            answer = await self._writer.put_back(source, consumer, batch, made=made)
            if isinstance(answer, PutBack):
                total = PutBack(total.put_back + answer.put_back, total.in_doubt + answer.in_doubt)
                for entry_id in batch:
                    del missing.ids[entry_id]
        if isinstance(answer, Refusal):
            return answer
        if isinstance(answer, StillCounts) and not missing.is_held_again(answer):
            await self._wait_on(source, consumer, missing, made=made)
            return None
        if missing.noted:
            await self._writer.note_waiting(source, consumer, (), made=made, journal_at=missing.journal_at)
        del self._missing[source, consumer]
        return total

    async def settled(self, ids: Container[bytes], after: bytes, *, by: str | None = None) -> set[bytes]:
        """Return which of ``ids`` the journal says, behind entry ``after``, that consumer ``by`` has settled.

        Or that anybody has (None), so that nothing of it is pending under this ID.
        """
        settled: set[bytes] = set()
        while True:
            try:
                rows: Any = await self._writer.client.execute_command(
                    "XRANGE", self._writer.keys.journal, b"(" + after, "+", "COUNT", PAGE
                )
            except ResponseError as error:
                _raise_if_away(error)
                return settled
            for entry_id, flat in rows:
                settled.update(settled_in(entry_id, flat or (), ids, by))
            if len(rows) < PAGE:
                return settled
            after = rows[-1][0]


def settled_in(entry_id: bytes, flat: Sequence[bytes], ids: Container[bytes], consumer: str | None) -> Iterable[bytes]:
    """Return those of ``ids`` that a journal entry says ``consumer`` has settled; None = anybody, for good. Hot."""
    data = dict(zip(flat[::2], flat[1::2], strict=False)).get(b"data", b"")
    if not any(found in ids for found in _ENTRY.findall(data)):
        return ()
    settled = [
        str(event.data.get("entry")).encode()
        for event in events_of(entry_id, flat)
        if event.event in SETTLED
        and (_is_for_good(event) if consumer is None else event.data.get("consumer") == consumer)
    ]
    return [one for one in settled if one in ids]


def _is_for_good(event: LifecycleEvent) -> bool:
    """Tell whether a delivery that was settled so leaves its entry: it was not given back where it is."""
    return event.data.get("new_entry") != event.data.get("entry")


def _raise_if_away(error: ResponseError) -> None:
    """Raise an error that passes. Any other says that the journal cannot be read: what it would tell is not known."""
    if meaning_of(error) in (Meaning.AWAY, Meaning.LOCKED_OUT):
        raise error
