"""Entry IDs, how far a stream has been read, and what was lost behind that. Pure: nothing here asks Redis.

How loss is noticed. Redis trims from the head. So while the entry that was read last is still there (the *anchor*),
nothing after it can have been trimmed: each page is asked for from the anchor on, and must begin with it. Where the
anchor is gone, Redis 7 tells the number of entries that were trimmed unread: all that were ever added, without those
still there, without those already read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reaper.pipeline.redis_stream.bounds import EARLIEST, LATEST

Id = tuple[int, int]
"""Entry ID: milliseconds and sequence number."""
ZERO: Id = (0, 0)
LAST_SEQUENCE = 2**64 - 1


def parse_id(text: str) -> Id:
    """Read ``ms-seq`` or ``ms``. Raises ValueError."""
    ms, dash, seq = text.partition("-")
    return int(ms), int(seq) if dash else 0


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
    """How many entries had ever been added to the stream up to ``id``, with it; None where that is not known."""
    initial: bool = False
    """Nothing has been read yet: ``id`` need not be an entry that exists."""

    @property
    def is_anchor(self) -> bool:
        """Tell whether ``id`` was an entry's, and that entry was read."""
        return not self.initial and self.id != ZERO

    def to_json(self) -> dict[str, Any]:
        """Return what goes into a checkpoint."""
        added = {} if self.added is None else {"added": self.added}
        return {"id": show_id(self.id), **added, **({"initial": True} if self.initial else {})}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Position":
        """Read what `to_json` has written."""
        return cls(parse_id(stored["id"]), stored.get("added"), bool(stored.get("initial")))


@dataclass(frozen=True)
class State:
    """What ``XINFO STREAM`` tells of a stream, at one instant."""

    last: Id
    length: int
    first: Id | None
    """The oldest entry; None where there is none."""
    added: int | None = None
    """How many entries have ever been added; None before Redis 7.0."""
    deleted: Id | None = None
    """The highest ID that XDEL has deleted (trimming does not count); None before Redis 7.0."""

    @property
    def removed(self) -> int | None:
        """How many entries have been trimmed or deleted; None before Redis 7.0."""
        return None if self.added is None else self.added - self.length

    @property
    def end(self) -> Position:
        """The position of one who has read everything."""
        return Position(self.last, self.added)


def parse_state(reply: Sequence[Any]) -> State:
    """Read the flat reply of ``XINFO STREAM``."""
    told = dict(zip(reply[::2], reply[1::2], strict=True))
    first, deleted = told[b"first-entry"], told.get(b"max-deleted-entry-id")
    return State(
        last=parse_id(told[b"last-generated-id"].decode()),
        length=told[b"length"],
        first=parse_id(first[0].decode()) if first else None,
        added=told.get(b"entries-added"),
        deleted=parse_id(deleted.decode()) if deleted else None,
    )


def find_loss(position: Position, state: State | None, *, ignore_deletes: bool = False) -> str | None:
    """Say what has been lost behind ``position``, None where nothing has. Exact where entries are counted.

    With ``ignore_deletes`` only what must have been trimmed is lost, not what XDEL may have deleted.
    """
    if position.initial and (position.added is None or state is None):
        return None  # nothing was read, and it is not known what there was
    at = show_id(position.id)
    if state is None:
        return f"it is gone (deleted, or Redis has restarted without it), and it had been read up to {at}"
    if state.last < position.id:
        return another_stream(f"its last ID is {show_id(state.last)}, and it had been read up to {at}")
    if position.added is not None and state.added is not None:
        return _count_loss(position, position.added, state, state.added, ignore_deletes)
    return _compare_loss(position, state, ignore_deletes)


def _count_loss(position: Position, read: int, state: State, added: int, ignore_deletes: bool) -> str | None:
    at = show_id(position.id)
    other = f"{read:,} entries had been added to it up to {at}"
    if added < read:
        return another_stream(f"{other}, and now it counts {added:,} in all")
    if state.first is not None and state.first <= position.id:
        return None  # trimming begins at the oldest entry, and has not come as far as this
    gone = added - state.length - read
    if gone < 0:
        return another_stream(f"{other}, all of them are gone, and it counts {added - state.length:,} removed ones")
    deleted = state.deleted is not None and state.deleted > position.id
    if gone == 0 or (deleted and ignore_deletes):
        return None
    what, were = ("entry", "was") if gone == 1 else ("entries", "were")
    how = "trimmed or deleted (XDEL)" if deleted else "trimmed"
    return f"{gone:,} {what} after {at} {were} {how} before being read"


def _compare_loss(position: Position, state: State, ignore_deletes: bool) -> str | None:
    """Judge by IDs alone: whether the gap before the oldest entry held unread ones cannot be told."""
    if position.initial or position.id == ZERO or ignore_deletes or state.last == position.id:
        return None
    if state.first is not None and state.first <= position.id:
        return None
    at = show_id(position.id)
    if state.first is None:
        return f"all entries after {at} were trimmed or deleted before being read, up to {show_id(state.last)}"
    why = (
        "this Redis is older than 7.0 and does not count the entries added"
        if state.added is None
        else "entries were deleted (XDEL) around the end of a limited batch"
    )
    return (
        f"entries after {at} may have been trimmed before being read: {at} is gone, and the oldest entry left is "
        f"{show_id(state.first)}. Only IDs can be compared, so neither the number nor whether there were any can be "
        f"told ({why})"
    )


def another_stream(why: str) -> str:
    """Say of a stream that does not go on where it was read what has become of it."""
    return f"{why}: it was deleted and created anew, or a failover or restart has lost its end"


def added_at_cut(position: Position, state: State, walked: int) -> int | None:
    """Return how many entries had been added up to the ``walked``-th one after ``position``; None if that is not exact.

    Deleted entries are counted by nobody: one between the two makes the sum too small.
    """
    if state.removed is None:
        return None
    if state.first is not None and state.first > position.id:
        exact = state.deleted is None or state.deleted < state.first
        return state.removed + walked if exact else None
    exact = state.deleted is None or state.deleted <= position.id
    return position.added + walked if exact and position.added is not None else None


def initial_position(starting: str, state: State | None) -> Position:
    """Return where a stream that has never been read begins: ``earliest``, ``latest``, or an ID (``(ID``: after it)."""
    if state is None:
        return Position(ZERO, 0, initial=True)
    if starting == LATEST:
        return replace(state.end, initial=True)
    position = ZERO if starting == EARLIEST else exclusive_id(starting)
    if position == state.last:
        return replace(state.end, initial=True)
    nothing_before = state.first is None or state.first > position
    return Position(position, state.removed if nothing_before and position < state.last else None, initial=True)


def exclusive_id(bound: str) -> Id:
    """Return the ID after which to read, for a lower bound as XRANGE has it: ``ID``, or ``(ID`` for "not that one"."""
    entry_id = parse_id(bound.removeprefix("("))
    return entry_id if bound.startswith("(") or entry_id == ZERO else before(entry_id)
