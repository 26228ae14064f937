"""Reports lost deliveries. Redis loses them if a third party deletes their consumer or destroys the group.

To all other processes a lost delivery looks like an acknowledged one. Two facts tell them apart. Full scans remember
which consumer had which entry, and the journal names the entries that were settled. A worker that is alive holds its
deliveries again. So a report waits until its registration ends, at most one visibility timeout.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
from redis.exceptions import ResponseError

from reaper.recovery.notes import GroupNotes
from reaper.recovery.scanner import Scanner
from reaper.recovery.writer import GroupWriter
from workers.protocol.calls.declined import Declined
from workers.protocol.events import ENDS, events_of
from workers.protocol.keys import is_worker
from workers.protocol.meaning import is_contact_error
from workers.upkeep.cleanup import GroupCleanup

BATCH = 500
"""Entries of one report."""
PAGE = 1_000
"""Journal entries that are read in one call."""
BEGINNING = b"0-0"

_ENTRY = re.compile(rb"\d+-\d+")


@dataclass(frozen=True, slots=True)
class Missing:
    """Entries that are not pending any more, of one consumer in one source."""

    source: str
    consumer: bytes
    ids: Sequence[bytes]
    is_deleted: bool
    """A third party deleted the consumer."""
    journal_at: bytes
    """Last entry of the journal when all of them were still pending, or an earlier one."""
    due_s: float
    """When to report them, by anyio's clock."""


class LostDeliveries:
    """The lost deliveries of one group in one term. Methods raise redis-py's errors."""

    def __init__(self, writer: GroupWriter, notes: GroupNotes, retention: timedelta | None) -> None:
        """The cleanup of full scans deletes consumers that were silent for ``retention``. None = it keeps them."""
        self._writer = writer
        self._notes = notes
        self._retention = retention
        self._cleanup = GroupCleanup(writer.reads, writer.moves)
        self._missing: list[Missing] = []
        self._journal_before = self.journal_at = BEGINNING
        """Last entry of the journal before the latest full scan, and before the next one (by the answer to a tick)."""
        self._deleted: Container[bytes] = ()
        """Consumers that the latest cleanup found deleted. The scan before it may have seen their entries."""

    async def scan_ends(self, scanners: Mapping[str, Scanner]) -> Declined | None:
        """Clean up, and report deliveries whose consumer, or group, was deleted. Return why a report was declined."""
        stream = self._writer.keys.stream
        missing = {key: await self._look(key, one.gone_by_consumer()) for key, one in scanners.items()}
        kept, is_group_lost = await self._cleanup.tidy(self._retention), False
        if not isinstance(kept, Declined):
            scanners[stream].forget_holders(kept.deleted)
            is_group_lost, self._deleted = self._cleanup.is_remade, kept.lost
            self._notes.cleaned_up(kept.unread_ms, is_group_lost=is_group_lost)
        for source, found in missing.items():
            is_remade = is_group_lost and source == stream
            self._missing += [missing for missing in found if is_remade or missing.is_deleted]
            scanners[source].forget_gone()
        self._journal_before = self.journal_at
        return await self._report(scanners)

    async def _look(self, source: str, gone: Mapping[bytes, Sequence[bytes]]) -> list[Missing]:
        """Return the entries that are ``gone`` from ``source``, by the consumer that had them.

        The cleanup behind it removes registrations of deleted consumers, and the one before removed others. A worker
        that leaves removes its registration together with its consumer.
        """
        there = await self._writer.consumers(source) if gone else set()
        workers = [consumer for consumer in gone if is_worker(consumer)]
        left_ms = await self._writer.registrations(workers) if workers else {}
        now, visibility_s = anyio.current_time(), self._writer.group.visibility_timeout.total_seconds()
        found = []
        for consumer, ids in gone.items():
            is_known = consumer in left_ms or not is_worker(consumer) or consumer in self._deleted
            due_s = now + min(left_ms.get(consumer, 0) / 1000, visibility_s)
            found.append(
                Missing(source, consumer, ids, consumer not in there and is_known, self._journal_before, due_s)
            )
        return found

    async def _report(self, sources: Container[str]) -> Declined | None:
        """Report the entries that are due. Forget those of other ``sources``, which do not exist any more."""
        now = anyio.current_time()
        self._missing = [missing for missing in self._missing if missing.source in sources]
        for missing in [missing for missing in self._missing if missing.due_s <= now]:
            settled, is_complete = await self._settled(set(missing.ids), missing.journal_at)
            is_certain = is_complete and is_worker(missing.consumer)
            left = [one for one in missing.ids if one not in settled]
            for first in range(0, len(left), BATCH):
                batch = left[first : first + BATCH]
                lost = await self._writer.report_lost(missing.source, missing.consumer, batch, is_certain=is_certain)
                if isinstance(lost, Declined):
                    return lost
                if lost:
                    self._notes.lost(missing.consumer, len(lost), is_certain=is_certain)
            self._missing.remove(missing)
        return None

    async def _settled(self, ids: Container[bytes], after: bytes) -> tuple[set[bytes], bool]:
        """Return those of ``ids`` that the journal behind ``after`` has as settled, and whether it is complete."""
        settled: set[bytes] = set()
        client, journal, start = self._writer.reads, self._writer.keys.journal, after
        try:
            is_complete = self._writer.has_journal and (
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
            if is_contact_error(error):
                raise
            return settled, False  # the journal cannot be read


def settled_in(entry_id: bytes, flat: Sequence[bytes], ids: Container[bytes], group: str) -> Iterable[bytes]:
    """Return those of ``ids`` that were settled by ``group``, by one entry of the journal. Fast if it names none.

    All groups of a stream share the journal, and each settles an entry on its own.
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
