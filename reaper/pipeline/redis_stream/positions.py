"""Entry IDs, how far a stream has been read, and how many entries were lost after that. Pure.

Redis trims from the oldest entry on. While the last read entry still exists (the *anchor*), no later entry was trimmed.
So each page starts at the anchor, and must begin with it. Without the anchor, Redis 7 and newer give the number of
entries that were trimmed unread. It is all entries ever added, without those still there and those read. Entries that
XDEL deletes are no loss, because the redrive of a dead letter deletes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Id = tuple[int, int]
"""Milliseconds and sequence number of an entry ID."""
ZERO: Id = (0, 0)
LAST_SEQUENCE = 2**64 - 1


def parse_id(text: str) -> Id:
    """Read ``ms-seq``. Raises ValueError."""
    ms, _, seq = text.partition("-")
    return int(ms), int(seq)


def show_id(entry_id: Id) -> str:
    """Write an ID as Redis does."""
    return f"{entry_id[0]}-{entry_id[1]}"


def before(entry_id: Id) -> Id:
    """Return the highest ID below ``entry_id``, which is above 0-0."""
    ms, seq = entry_id
    return (ms, seq - 1) if seq else (ms - 1, LAST_SEQUENCE)


def cuts_between(after: Id, until: Id, parts: int) -> list[Id]:
    """Return at most ``parts - 1`` IDs that cut ``(after, until]`` into parts of about equal time, in order."""
    low, high = ((ms << 64) + seq for ms, seq in (after, until))
    cuts = sorted({low + (high - low) * part // parts for part in range(1, parts)} - {low})
    return [(cut >> 64, cut & LAST_SEQUENCE) for cut in cuts]


@dataclass(frozen=True)
class Position:
    """How far a stream has been read."""

    id: Id
    added: int | None = None
    """Entries that had ever been added to the stream up to and including ``id``. None = unknown."""
    initial: bool = False
    """No entry has been read yet, and ``id`` need not be an existing entry."""

    @property
    def is_anchor(self) -> bool:
        """Tell whether ``id`` is an entry that was read."""
        return not self.initial and self.id != ZERO

    def to_json(self) -> dict[str, Any]:
        """Return the form in a checkpoint."""
        added = {} if self.added is None else {"added": self.added}
        return {"id": show_id(self.id), **added, **({"initial": True} if self.initial else {})}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Position":
        """Read the result of `to_json`."""
        return cls(parse_id(stored["id"]), stored.get("added"), bool(stored.get("initial")))


@dataclass(frozen=True)
class State:
    """The reply to ``XINFO STREAM``, at one instant."""

    last: Id
    length: int
    first: Id | None
    """The oldest entry. None in an empty stream."""
    added: int | None = None
    """Entries that have ever been added. None before Redis 7.0."""
    deleted: Id | None = None
    """The highest ID that XDEL has deleted (trimming does not count). None before Redis 7.0."""

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> "State":
        """Read the reply as redis-py returns it."""
        first, deleted = reply["first-entry"], reply.get("max-deleted-entry-id")
        return cls(
            last=parse_id(reply["last-generated-id"].decode()),
            length=reply["length"],
            first=parse_id(first[0].decode()) if first else None,
            added=reply.get("entries-added"),
            deleted=parse_id(deleted.decode()) if deleted else None,
        )

    @property
    def removed(self) -> int | None:
        """Entries that were trimmed or deleted, or None before Redis 7.0."""
        return None if self.added is None else self.added - self.length

    @property
    def end(self) -> Position:
        """The position of a reader that has read everything."""
        return Position(self.last, self.added)


def initial_position(state: State | None) -> Position:
    """Return the start of a stream that was never read, which is its oldest entry. Earlier trimming is no loss."""
    return Position(ZERO, state.removed if state else 0, initial=True)


def find_loss(position: Position, state: State | None) -> str | None:
    """Describe the loss after ``position``. None without a loss, or if Redis does not count entries."""
    if position.initial and (position.added is None or state is None):
        return None  # no entry was read, and the former content is unknown
    at = show_id(position.id)
    if state is None:
        return f"it is gone (deleted, or Redis has restarted without it), and it had been read up to {at}"
    if state.last < position.id:
        return another_stream(f"its last ID is {show_id(state.last)}, and it had been read up to {at}")
    if position.added is None or state.added is None:
        return None
    read_up_to = f"{position.added:,} entries had been added to it up to {at}"
    if state.added < position.added:
        return another_stream(f"{read_up_to}, and now it counts {state.added:,} in all")
    if state.first is not None and state.first <= position.id:
        return None  # trimming begins at the oldest entry, and has not come as far as this
    gone = state.added - state.length - position.added
    if gone < 0:
        removed = state.added - state.length
        return another_stream(f"{read_up_to}, all of them are gone, and it counts {removed:,} removed ones")
    if gone == 0 or (state.deleted is not None and state.deleted > position.id):
        return None
    what, were = ("entry", "was") if gone == 1 else ("entries", "were")
    return f"{gone:,} {what} after {at} {were} trimmed before being read"


def another_stream(why: str) -> str:
    """Describe a stream that does not continue where it was read."""
    return f"{why}: it was deleted and created anew, or a failover or restart has lost its end"


def added_at(position: Position, state: State, walked: int) -> int | None:
    """Return how many entries had been added up to the ``walked``-th one after ``position``, or None if not exact.

    XDEL leaves no trace in the count, so the sum is not exact where it may have deleted an entry between the two.
    """
    if state.removed is None:
        return None
    if state.first is not None and state.first > position.id:
        exact = state.deleted is None or state.deleted < state.first
        return state.removed + walked if exact else None
    exact = state.deleted is None or state.deleted <= position.id
    return position.added + walked if exact and position.added is not None else None
