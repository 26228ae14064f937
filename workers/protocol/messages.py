"""Reads entries defensively, with their reserved fields, IDs, and raw replies.

Replies are RESP2 arrays of bytes (see `workers.protocol.connection`). redis-py's own parser turns an entry into a dict
and so loses duplicate fields, and it costs time in the hot path.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from workers.protocol.errors import UnexpectedReplyError

FIELD_JOB = b"reaper.job"
FIELD_DELIVERIES = b"reaper.deliveries"
FIELD_VISIBILITY_MS = b"reaper.visibility_ms"
FIELD_TIMEOUT_MS = b"reaper.timeout_ms"
FIELD_CONSUMERS = b"reaper.consumers"
FIELD_COPIES = b"reaper.copies"
FIELD_QUARANTINED = b"reaper.quarantined"
FIELD_TRACEPARENT = b"traceparent"
FIELD_TRACESTATE = b"tracestate"
DEAD_PREFIX = b"reaper.dead."
RESERVED_PREFIX = b"reaper."

MAX_JOB_ID_BYTES = 256
_JOB_ID = re.compile(rb"[^,\x00-\x1f\x7f]{1,%d}" % MAX_JOB_ID_BYTES)
MAX_DELIVERIES_LIMIT = 1_000_000
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_MAX_DIGITS = 15  # below 2**53, so that Lua reads the same number

Pairs = list[tuple[bytes, bytes]]


class Redelivery(StrEnum):
    """The way in which a recovered job becomes ready again, which is the redelivery policy of the group."""

    STREAM = "stream"
    RETRY_STREAM = "retry-stream"
    IN_PLACE = "in-place"
    """In place, for readers with CLAIM (Redis 8.4). The job is not copied."""


class RecoveryMode(StrEnum):
    """Which processes recover stalled deliveries of the group."""

    REAPER = "reaper"
    """A replicated service does, from outside."""
    EMBEDDED = "embedded"
    """The workers do, each in its own loop."""


def text(value: bytes | str | int) -> str:
    r"""Return a word of a reply as text, without ever failing. Bytes that are not UTF-8 show as ``\xNN``."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def on_one_line(value: bytes | str) -> str:
    """Decode for a log. Job IDs and consumer names come from outside, and must not break a line or forge one."""
    shown = text(value)
    if shown.isprintable():
        return shown
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in shown
    )


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 job``, ``2 jobs`` or ``2 deliveries``. ``many`` is an irregular plural."""
    several = many or (f"{one[:-1]}ies" if one.endswith("y") else f"{one}s")
    return f"{number} {one if number == 1 else several}"


def first_of(names: Collection[bytes]) -> str:
    """Return the first three of ``names`` for a log, and whether there are more."""
    return ", ".join(map(on_one_line, sorted(names)[:3])) + (" …" if len(names) > 3 else "")


def entry_ms(entry_id: bytes | str) -> int:
    """Return the milliseconds part of an entry ID."""
    return int(text(entry_id).partition("-")[0])


def is_entry_id(value: str) -> bool:
    """Return whether ``value`` is an entry ID in full, with two numbers that Redis accepts."""
    return _ENTRY_ID.fullmatch(value) is not None and all(int(part) < 2**64 for part in value.split("-"))


def entry_order(entry_id: bytes) -> tuple[int, bytes, int, bytes]:
    """Return a key that sorts entry IDs as Redis does. It writes no zeros in front, so a longer number is greater."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return len(milliseconds), milliseconds, len(sequence), sequence


_SMALL_NUMBERS: dict[bytes | None, int] = {b"%d" % number: number for number in range(100)}
"""Most numbers are among these. A look-up takes a third of the time of a conversion."""


def whole_number(value: bytes | None, default: int) -> int:
    """Read a whole number that came from outside. Other values are ``default``."""
    known = _SMALL_NUMBERS.get(value)
    if known is not None:
        return known
    return int(value) if value is not None and value.isdigit() and len(value) <= _MAX_DIGITS else default


class Metadata(NamedTuple):
    """The reserved fields of an entry, sanitised as in ``lua/prelude``, because a producer may send anything."""

    job_id: bytes
    deliveries: int = 0
    """Counted deliveries before this entry."""
    generation: int = 0
    first_ms: int = 0
    visibility_ms: int = 0
    """0 if the job asks for no longer visibility timeout."""
    timeout_ms: int = 0
    """How long the job may run. 0 if the job has no timeout of its own."""
    copies: int = 0
    """How often the job was copied to a new entry."""
    waits: int = 0
    """Uncounted retries in a row."""
    hand_backs: int = 0
    """How often in a row the job was handed back while its handler ran."""


_NUMBERS = {name: RESERVED_PREFIX + name.encode() for name in Metadata._fields[1:]}


def read_metadata(entry_id: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> Metadata:
    """Read the reserved fields of an entry. The last one of a name counts."""
    found, numbers = dict(pairs), {"first_ms": entry_ms(entry_id)}
    for name, field in _NUMBERS.items():
        if field in found:  # most are missing
            numbers[name] = whole_number(found[field], numbers.get(name, 0))
    job_id = found.get(FIELD_JOB, b"")
    return Metadata(job_id if is_job_id(job_id) else entry_id, **numbers)


def is_job_id(value: bytes) -> bool:
    """Return whether ``value`` can be a job ID. It has no comma, because commas separate the IDs in journal columns."""
    return _JOB_ID.fullmatch(value) is not None


def pair_up(flat: Sequence[bytes]) -> Pairs:
    """Turn Redis's flat field array into pairs, duplicates and order kept."""
    return list(zip(flat[::2], flat[1::2], strict=True))


CLAIM_READY_MS = 10**9
"""An entry that is idle for longer (11 days) is ready in place. Visibility timeouts are shorter."""


ReadEntry = tuple[bytes, bytes, Sequence[bytes] | None, int, int]
"""One entry of a read: stream, ID, and flat fields, which are None if a third party deleted the payload. A read with
CLAIM adds the idle time in ms and the number of deliveries before this one. Both are 0 for a new entry."""


def parse_read_reply(reply: Any) -> list[ReadEntry]:
    """Read a reply of XREADGROUP or XREAD, ``[[stream, [[id, [f, v…]]…]]…]`` or none. Hot.

    Raises UnexpectedReplyError.
    """
    found = list[ReadEntry]()
    try:
        for stream, entries in reply or ():
            if entries and len(entries[0]) == 2:
                found += [(stream, entry_id, flat, 0, 0) for entry_id, flat in entries]
            else:
                found += [(stream, entry_id, flat, idle_ms, before) for entry_id, flat, idle_ms, before in entries]
    except (TypeError, ValueError) as error:
        raise UnexpectedReplyError(f"unexpected reply to XREADGROUP: {reply!r:.200}") from error
    return found


class Pending(NamedTuple):
    """One row of the pending entries list. ``idle_ms`` is -1 and ``consumer`` empty if the entry has no owner."""

    entry_id: bytes
    consumer: bytes
    idle_ms: int
    delivery_count: int
