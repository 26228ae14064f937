"""Deliveries that nobody runs any more: what becomes of them is said in one way, whoever recovers them.

A leader does (``recover_entries.lua``, in `reaper.recovery.writer`), a worker that adopts what it owns and does not
run, and in embedded mode every worker.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from redis.asyncio import Redis

from workers.protocol.calls import CALL_BYTES, Journal
from workers.protocol.calls.beat import BEAT_FIELDS
from workers.protocol.calls.membership import Agreement
from workers.protocol.calls.refusals import Refusal, read_refusal
from workers.protocol.connection import KeptConnection
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Note, read_note, text, told
from workers.protocol.scripts import load_script

ADOPT = load_script("workers.protocol", "former_adopt")
AUTOCLAIM = load_script("workers.protocol", "autoclaim")
RETURN_TAKEN = load_script("workers.protocol", "return_taken")


class Outcome(IntEnum):
    """What became of one delivery. Numbers as in ``recover_entries.lua`` and ``recovery/*.lua``."""

    GONE = 0
    REDELIVERED = 1
    SUSPECTED = 2
    DEAD_LETTERED = 3
    NOT_DUE = 4
    LOST_PAYLOAD = 5
    HELD = 6
    PUT_OFF = 7


OUTCOMES = tuple(Outcome)
"""By number: the cheapest way from one to the other."""

ENDED = frozenset({Outcome.REDELIVERED, Outcome.SUSPECTED, Outcome.DEAD_LETTERED})
"""The delivery was ended for its consumer."""


class Recovered(NamedTuple):
    """One delivery's result. ``detail``: new entry ID, dead letter's ID, remaining ms, or why it is held."""

    entry_id: bytes
    outcome: Outcome
    detail: bytes | int = b""
    idle_ms: int = 0
    consumer: bytes = b""
    job_id: bytes = b""
    delivery_count: int = 0
    traced: Sequence[bytes] | None = None
    """What ``recovery/*.lua`` tells of a traced job."""
    asked_ms: int = 0
    """The visibility timeout that the job asks for, where it is longer than any may have."""

    @property
    def told(self) -> str:
        """The detail, for people."""
        return told(self.detail)


class Ready(NamedTuple):
    """Plain jobs of one consumer, delivered equally often, that are ready again. A mass is made of them.

    None of them is traced, and the ID of each job is its entry's.
    """

    consumer: bytes
    delivery_count: int
    idle_ms: Sequence[int]
    entry_ids: Sequence[bytes]
    new_entries: Sequence[bytes]

    def rows(self) -> Iterator[Recovered]:
        """Return them one by one."""
        for entry_id, new_entry, idle_ms in zip(self.entry_ids, self.new_entries, self.idle_ms, strict=True):
            yield Recovered(
                entry_id, Outcome.REDELIVERED, new_entry, idle_ms, self.consumer, entry_id, self.delivery_count
            )


class Recoveries(NamedTuple):
    """What became of the entries that one call was about."""

    ready: Sequence[Ready]
    others: Sequence[Recovered]

    def rows(self) -> Iterator[Recovered]:
        """Return all one by one."""
        for together in self.ready:
            yield from together.rows()
        yield from self.others


def read_recoveries(reply: Sequence[Any], entry_ids: Sequence[bytes]) -> Recoveries:
    """Read what ``recover_entries.lua`` answers about ``entry_ids``."""
    _, runs, *rows = reply
    if len(runs) == 3 and len(runs[2]) == len(rows):  # all are alike, as mostly in a mass
        consumer, count, idle_ms = runs
        return Recoveries((Ready(consumer, count, idle_ms, entry_ids, rows),), ())
    told = [one for one in zip(entry_ids, rows, strict=True) if type(one[1]) is bytes]
    ready, at = [], 0
    for consumer, count, idle_ms in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
        ids, new_entries = zip(*told[at : at + len(idle_ms)], strict=True)
        ready.append(Ready(consumer, count, idle_ms, ids, new_entries))
        at += len(idle_ms)
    others = [
        Recovered(entry_id, OUTCOMES[row[0]], *row[1:])
        for entry_id, row in zip(entry_ids, rows, strict=True)
        if type(row) is not bytes
    ]
    return Recoveries(ready, others)


class Claimed(NamedTuple):
    """A delivery that was taken over, counted where it was somebody else's."""

    entry_id: bytes
    times_delivered: int
    fields: Sequence[bytes]
    owner: bytes
    """Who had it before."""
    idle_ms: int


async def read_notes(client: Redis, keys: GroupKeys, entry_ids: Iterable[bytes]) -> dict[bytes, Note]:
    """Return by entry ID what is noted of jobs that were given back where they are. Raises what redis-py raises."""
    wanted = list(entry_ids)
    if not wanted:
        return {}
    values: Any = await client.execute_command("HMGET", keys.notes, *wanted)
    return _by_entry(zip(wanted, values, strict=True))


async def read_notes_in_time(
    client: Redis, keys: GroupKeys, entry_ids: Sequence[bytes]
) -> tuple[dict[bytes, Note], dict[str, str], tuple[int, int]]:
    """Return what `read_notes` does, the group settings, and what ``TIME`` answers; there must be some IDs."""
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command("HMGET", keys.notes, *entry_ids)
    pipeline.execute_command("HMGET", keys.agreement, *BEAT_FIELDS)
    pipeline.execute_command("TIME")
    values, settings, time = await pipeline.execute()
    known = {name: text(value) for name, value in zip(BEAT_FIELDS, settings, strict=True) if value is not None}
    return _by_entry(zip(entry_ids, values, strict=True)), known, time


def _by_entry(values: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, Note]:
    found = {entry_id: read_note(value) for entry_id, value in values}
    return {entry_id: note for entry_id, note in found.items() if note is not None}


async def return_taken(
    client: Redis, source: str, keys: GroupKeys, consumer: str, taken: Iterable[tuple[bytes, int]]
) -> int:
    """Give back what a read has taken from somebody who lives (``return_taken.lua``); return how much of it.

    ``taken``: entry IDs, and how often each was delivered before. Raises what redis-py raises.
    """
    words = [word for one in taken for word in one]
    given_back: int = await RETURN_TAKEN.run(
        client, (source, keys.stream, keys.schedule), (keys.group, consumer, *words)
    )
    return given_back


# --- adopt --------------------------------------------------------------------------------------------------


class AdoptionMode(StrEnum):
    """Why deliveries are taken over; the values are those of ``adopt.lua``."""

    RESTART = "restart"
    """They are of an earlier process of our name, which may have died of them: they count."""
    REREAD = "reread"
    """They are ours, and never arrived: they do not count."""
    CLAIMED = "claimed"
    """The same, after a lost reply of a read with CLAIM: some may be in others' hands, and go back to them."""


class Adopted(NamedTuple):
    """What came of one page of an owner's deliveries."""

    next_start: str
    """Where the next page begins; '' = this was the last."""
    suspects_left: int
    """Suspects that were left alone."""
    ended: list[Recovered]
    """What had its last delivery: dead letters, and what is held."""
    taken: list[Claimed]
    notes: dict[bytes, Note]
    """By entry ID: what is noted of some of them."""


async def adopt(
    client: Redis,
    source: str,
    keys: GroupKeys,
    *,
    consumer: str,
    owner: str,
    mode: AdoptionMode,
    room: int,
    suspects: int,
    agreement: Agreement,
    journal: Journal,
    start: str,
    in_flight: Iterable[tuple[bytes, int]],
) -> Adopted:
    """Take over at most ``room`` deliveries of ``owner``, ``suspects`` of them being suspects (``adopt.lua``).

    ``in_flight``: what is never taken: entry IDs, and how often each was delivered (0 = whatever that is).
    """
    next_start, suspects_left, dead_letters, held, taken = await ADOPT.run(
        client,
        (
            source, keys.dead, keys.agreement, keys.journal, keys.stream, keys.suspects, keys.schedule, keys.retry,
            keys.notes,
        ),
        (
            keys.group, consumer, owner, mode, room, suspects, agreement.max_deliveries, agreement.redelivery, *journal,
            start, *(word for one in in_flight for word in one),
        ),
    )  # fmt: skip
    before = owner.encode()
    ended = [
        Recovered(entry_id, Outcome.DEAD_LETTERED, dead_letter, idle_ms, before, job_id, count, *traced)
        for job_id, entry_id, count, dead_letter, idle_ms, *traced in dead_letters
    ]
    ended += [Recovered(entry_id, Outcome.HELD, why, consumer=before) for entry_id, why in held]
    claimed = [Claimed(entry_id, times, fields, before, idle_ms) for entry_id, times, fields, idle_ms, _ in taken]
    return Adopted(text(next_start), suspects_left, ended, claimed, _by_entry((row[0], row[4]) for row in taken))


# --- autoclaim ----------------------------------------------------------------------------------------------

START = "-"
"""The cursor in front of the first entry."""
PAGE = 500
"""Pending entries that one call looks at."""
PAGE_OVERDUE = 128
"""Overdue ones after which a call ends, however small they are."""


class EndOfPage(StrEnum):
    """Why a call ended before its page did; the values are those of ``autoclaim.lua``."""

    WHOLE = ""
    """It did not."""
    ROOM = "room"
    """There is no more room for what is overdue."""
    FULL = "full"
    """It has done as much as one call may."""


class Page(NamedTuple):
    """What came of one page of the pending entries list."""

    server_ms: int
    cursor: str
    """Where the next one begins; '' = the list was walked to its end."""
    soonest_ms: int | None
    """Time until the first delivery of the page is due that was left alone; None = there is none."""
    ended: EndOfPage
    waiting: int
    """Overdue ones that were left for want of room."""
    suspects: int
    """Suspects of the group that are parked, or out."""
    results: list[Recovered]
    claimed: Sequence[tuple[bytes, int, Sequence[bytes], bytes, int]]
    """As the script tells them, for there may be many: entry ID, times delivered, fields, owner before, idle ms."""
    ours: Sequence[bytes]
    """Overdue entries that are our own."""


async def autoclaim(
    client: KeptConnection,
    source: str,
    keys: GroupKeys,
    *,
    consumer: str,
    agreement: Agreement,
    journal: Journal,
    cursor: str,
    room: int,
    patience_ms: int,
    abandoned: Iterable[bytes],
) -> Page | Refusal:
    """Recover what is overdue on one page, claiming at most ``room`` deliveries (``autoclaim.lua``).

    ``abandoned``: entries of ours that are recovered like anybody's.
    """
    reply = await AUTOCLAIM.run(
        client,
        (
            source, keys.stream, keys.retry, keys.dead, keys.schedule, keys.suspects, keys.agreement, keys.journal,
            keys.notes,
        ),
        (
            keys.group, consumer, agreement.visibility_ms, agreement.max_deliveries, agreement.redelivery,
            *journal, cursor, room, patience_ms, PAGE, CALL_BYTES, PAGE_OVERDUE,
            *abandoned,
        ),
    )  # fmt: skip
    if reply[0] != b"ok":
        return read_refusal(reply)
    _, server_ms, next_cursor, soonest_ms, ended, waiting, suspects, results, claimed, ours = reply
    recovered = [
        Recovered(entry_id, OUTCOMES[code], detail, idle_ms, owner, job_id, count, *traced)
        for code, detail, idle_ms, owner, job_id, count, entry_id, *traced in results
    ]
    soonest_ms, end = soonest_ms if soonest_ms >= 0 else None, EndOfPage(text(ended))
    return Page(server_ms, text(next_cursor), soonest_ms, end, waiting, suspects, recovered, claimed, ours)
