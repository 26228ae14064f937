"""Reports lost deliveries. Redis loses them if a third party deletes their consumer or destroys the group.

To all other processes a lost delivery looks like an acknowledged one. Two facts tell them apart. Full scans remember
which consumer had which entry, and the journal names the entries that were settled. A worker that is alive holds its
deliveries again. So a report waits until its registration ends, at most one visibility timeout.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
from redis.exceptions import ResponseError

from reaper.recovery.writer import GroupWriter
from workers.protocol.calls.refusals import Refusal
from workers.protocol.events import ENDS, events_of
from workers.protocol.keys import is_worker
from workers.protocol.meaning import Meaning, meaning_of

BATCH = 500
"""Entries of one report."""
PAGE = 1_000
"""Journal entries that are read in one call."""
BEGINNING = b"0-0"

_ENTRY = re.compile(rb"\d+-\d+")


class Look(NamedTuple):
    """Entries that are gone from one source since the last full scan, and its consumers."""

    source: str
    gone: Mapping[bytes, Sequence[bytes]]
    """Entry IDs by the consumer that had them."""
    there: Container[bytes]
    """The source's consumers."""
    ends_s: Mapping[bytes, float]
    """When the registrations of workers end, by their consumer and anyio's clock."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Entries that are gone with one consumer of one source."""

    source: str
    consumer: bytes
    ids: Sequence[bytes]
    journal_at: bytes
    """Last entry of the journal when all of them were still pending, or an earlier one."""
    due_s: float
    """When to report them, by anyio's clock."""


@dataclass(frozen=True, slots=True)
class Report:
    """Entries that were reported as lost. If ``is_certain``, the journal would name settled ones."""

    consumer: bytes
    ids: Sequence[bytes]
    is_certain: bool


class LostDeliveries:
    """The lost deliveries of one group in one term. Methods raise errors of redis-py."""

    def __init__(self, writer: GroupWriter) -> None:
        self._writer = writer
        self._missing: list[Missing] = []

    async def journal_position(self) -> bytes:
        """Return the ID of the journal's last entry."""
        try:
            newest: Any = await self._writer.client.xrevrange(self._writer.keys.journal, "+", "-", 1)
        except ResponseError as error:
            _raise_if_away(error)
            return BEGINNING
        return bytes(newest[0][0]) if newest else BEGINNING

    async def look(self, source: str, gone: Mapping[bytes, Sequence[bytes]]) -> Look:
        """Read the consumers of ``source``. ``gone`` has the entries that are gone, by the consumer that had them.

        Call it before the house is kept, which removes registrations of deleted consumers.
        """
        there = await self._writer.consumers(source) if gone else set()
        workers = [consumer for consumer in gone if is_worker(consumer)]
        left_ms = await self._writer.registrations(workers) if workers else {}
        now = anyio.current_time()
        return Look(source, gone, there, {consumer: now + left / 1000 for consumer, left in left_ms.items()})

    def note(self, look: Look, journal_at: bytes, *, is_remade: bool, deleted: Container[bytes]) -> None:
        """Note the entries of deleted consumers, or of all consumers if the group ``is_remade``.

        A worker that leaves removes its registration together with its consumer. So it deleted the consumer itself.
        Of the consumers in ``deleted``, the cleanup before has found the loss, and removed the registration.
        """
        now, visibility_s = anyio.current_time(), self._writer.group.visibility_timeout.total_seconds()
        for consumer, ids in look.gone.items():
            ends_s = look.ends_s.get(consumer)
            is_known = ends_s is not None or not is_worker(consumer) or consumer in deleted
            is_deleted = consumer not in look.there and is_known
            if is_remade or is_deleted:
                due_s = now if ends_s is None else min(ends_s, now + visibility_s)
                self._missing.append(Missing(look.source, consumer, ids, journal_at, due_s))

    async def report(self, sources: Container[str]) -> list[Report] | Refusal:
        """Report the entries that are due. Forget those of other ``sources``, which do not exist any more."""
        now, reports = anyio.current_time(), []
        self._missing = [missing for missing in self._missing if missing.source in sources]
        for missing in [missing for missing in self._missing if missing.due_s <= now]:
            settled, is_complete = await self._settled(set(missing.ids), missing.journal_at)
            is_certain = is_complete and is_worker(missing.consumer)
            left = [one for one in missing.ids if one not in settled]
            lost: list[bytes] = []
            for first in range(0, len(left), BATCH):
                batch = left[first : first + BATCH]
                found = await self._writer.report_lost(missing.source, missing.consumer, batch, is_certain=is_certain)
                if isinstance(found, Refusal):
                    return found
                lost += found
            self._missing.remove(missing)
            if lost:
                reports.append(Report(missing.consumer, lost, is_certain))
        return reports

    async def _settled(self, ids: Container[bytes], after: bytes) -> tuple[set[bytes], bool]:
        """Return those of ``ids`` that the journal names as settled behind ``after``, and whether it names all."""
        settled: set[bytes] = set()
        client, journal, start = self._writer.client, self._writer.keys.journal, after
        try:
            is_complete = bool(self._writer.journal.writes) and (
                after == BEGINNING or bool(await client.xrange(journal, after, after))
            )
            while True:
                rows: Any = await client.execute_command("XRANGE", journal, b"(" + start, "+", "COUNT", PAGE)
                for entry_id, flat in rows:
                    settled.update(settled_in(entry_id, flat or (), ids, self._writer.keys.group))
                if len(rows) < PAGE:
                    return settled, is_complete
                start = rows[-1][0]
        except ResponseError as error:
            _raise_if_away(error)
            return settled, False


def settled_in(entry_id: bytes, flat: Sequence[bytes], ids: Container[bytes], group: str) -> Iterable[bytes]:
    """Return those of ``ids`` that a journal entry names as settled by ``group``. Hot: most entries name none.

    All groups of a stream share the journal, and each settles an entry of its own accord.
    """
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    if not any(found in ids for found in _ENTRY.findall(fields.get(b"entry", b""))):
        return ()
    settled = [
        str(event.data.get("entry")).encode()
        for event in events_of(entry_id, flat, ENDS)
        if event.data.get("group") == group and event.data.get("new_entry") != event.data.get("entry")
    ]
    return [one for one in settled if one in ids]


def _raise_if_away(error: ResponseError) -> None:
    """Raise an error that passes. Any other error means that the journal cannot be read."""
    if meaning_of(error) in (Meaning.AWAY, Meaning.LOCKED_OUT):
        raise error
