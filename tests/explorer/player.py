"""A small worker of the explorer. It keeps the rules of docs/protocol.md."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.explorer.board import Word

Key = tuple[str, bytes]
"""Source and entry ID."""


class Kind(StrEnum):
    """Plan of a job's handler."""

    OK = "ok"
    FAILS = "fails"
    """It fails once."""
    LATER = "later"
    """It asks for a retry or hands back, now and then."""
    POISON = "poison"
    """It kills its process."""


@dataclass(eq=False)
class InHand:
    """A delivery in a worker's hands."""

    number: int
    """Which job."""
    source: str
    entry_id: bytes
    times: int
    is_quarantined: bool
    is_last: bool
    """Its last delivery, so it runs alone (rule W3)."""
    state: str = "waiting"
    """waiting, running, or done."""
    is_asked: bool = False
    """Its arrival was sent: from now on nothing else begins and nothing is read."""
    has_arrived: bool = False
    verb: str = ""
    delay_ms: int = 0

    @property
    def key(self) -> Key:
        """Identity of the entry."""
        return self.source, self.entry_id


@dataclass(frozen=True)
class Verdict:
    """One item of a call."""

    number: int
    verb: str
    key: Key
    times: int


@dataclass(frozen=True)
class Call:
    """A settlement, as it is sent, and sent again."""

    script: str
    source: str
    consumer: str
    number: int
    words: tuple[Word, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Heartbeat:
    """An extension, as it is sent."""

    source: str
    consumer: str
    words: tuple[Word, ...]


@dataclass(eq=False)
class Player:
    """A worker of ours, or a plain one with reads and acks only."""

    name: str
    is_plain: bool
    hand: dict[Key, InHand] = field(default_factory=dict)
    call: Call | None = None
    """A settlement without an answer. It is sent again before any other (rule W2)."""
    number: int = 0
    answered: int = 0
    frozen: int = 0
    """It does nothing for so many steps."""
    fuse: int | None = None
    """So many steps until the poison job that it runs kills it."""
    is_dead: bool = False

    @property
    def is_alone_with_one(self) -> bool:
        """Return whether a job with its last delivery blocks all other starts."""
        return any(held.is_asked for held in self.hand.values())

    def may_begin(self) -> list[InHand]:
        """Return what may begin now (rule W3)."""
        held = list(self.hand.values())
        waiting = [one for one in held if one.state == "waiting"]
        if self.is_plain:
            return waiting
        asked = [one for one in held if one.is_asked]
        if asked:
            return [one for one in asked if one.state == "waiting"]
        is_busy = any(one.state != "waiting" for one in held)
        return [one for one in waiting if not (one.is_last and is_busy)]

    def next_call(self, source: str, items: Sequence[InHand]) -> Call:
        """Make a settlement of one kind, acks or other verdicts."""
        self.number += 1
        verdicts = tuple(Verdict(one.number, one.verb, one.key, one.times) for one in items)
        if items[0].verb == "ack":
            words: tuple[Word, ...] = ("0", len(items), *(one.entry_id for one in items))
            return Call("ack", source, self.name, self.number, words, verdicts)
        others = (
            word for one in items for word in (one.verb, one.entry_id, one.times, one.delay_ms, "why", "error", "", 0)
        )
        return Call("settle", source, self.name, self.number, tuple(others), verdicts)

    def heartbeat(self, source: str, items: Sequence[InHand]) -> Heartbeat:
        """Make an extension with the state of each handler (rule W4)."""
        words: list[Word] = []
        for one in items:
            handling = 2 if one.state != "waiting" else int(one.is_asked)
            words += [one.entry_id, one.times, handling]
        return Heartbeat(source, self.name, tuple(words))
