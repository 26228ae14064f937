"""What a worker says of its own deliveries: they are settled, they live, they were delivered and started."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

import redis
from redis.asyncio import Redis

from workers.protocol.calls import Journal
from workers.protocol.calls.membership import Agreement
from workers.protocol.connection import KeptConnection
from workers.protocol.keys import GroupKeys
from workers.protocol.meaning import TooLateError
from workers.protocol.messages import text
from workers.protocol.scripts import load_script

SETTLE = load_script("workers.protocol", "settle")
EXTEND_VISIBILITY = load_script("workers.protocol", "extend_visibility")
HOLD_AGAIN = load_script("workers.protocol", "hold_again")

Word = str | bytes | int


class Delivery(Protocol):
    """What tells a delivery from all others."""

    raw_entry_id: bytes
    raw_id: bytes
    """The job's ID."""
    times_delivered: int
    """As the pending entries list has it."""


DeliveryT = TypeVar("DeliveryT", bound=Delivery)
DeliveryT_co = TypeVar("DeliveryT_co", bound=Delivery, covariant=True)
DeliveryT_contra = TypeVar("DeliveryT_contra", bound=Delivery, contravariant=True)


# --- settle -------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """How a delivery ends. The values are the verbs of ``settle.lua``."""

    ACK = "ack"
    """The one that says nothing more about its delivery."""
    NACK = "nack"
    """It failed, and that counts."""
    RETRY = "retry"
    """It failed, and that does not count."""
    HAND_BACK = "hand_back"
    """It was not run, or not to its end: ready again at once, and it does not count."""
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, and what to keep of it where it was no success."""

    outcome: Outcome
    reason: str = ""
    """Why the job is a dead letter, if it becomes one."""
    error: str = ""
    """What went wrong, for people."""
    delay_ms: int = 0
    """How long the job waits before it is ready again."""
    traceback: str = ""
    """Where it went wrong; travels with the dead letter, if the job becomes one."""
    exception: str = field(default="", compare=False)
    """Type of what the handler raised, where that was no verdict of its own."""


class Result(IntEnum):
    """What became of a verdict. Numbers as in ``settle.lua``."""

    REFUSED = 0
    """The delivery is not ours any more."""
    DONE = 1
    DEAD = 2
    UNKNOWN = 3
    """Not pending, and an earlier reply was lost."""
    HELD = 4
    LATE = 5
    """To be asked again: not pending, and the call came when what it says counted no more; or a read has just taken it,
    and will give it back."""
    LOST = 6
    """Given back, and its payload was deleted: it cannot be run again. The journal has it."""


class Settled(NamedTuple):
    """One delivery's result. ``detail``: the dead letter's ID, or why it is held."""

    result: Result
    detail: str = ""


_SETTLED = tuple(map(Settled, Result))

MANY = "acks"
"""The verb of many acks that the journal has as one entry."""
ACKS_IN_AN_ENTRY = 32
ENTRY_BYTES = 2_048
"""Most bytes of an entry that tells of more than one ack: a journal is capped by the number of its entries."""


class Ended(Protocol[DeliveryT_co]):
    """A delivery with its verdict. Whoever has noted the two together settles without a copy of what was noted."""

    @property
    def job(self) -> DeliveryT_co:
        """The delivery."""

    @property
    def verdict(self) -> Verdict:
        """How it ended."""

    @property
    def run_ms(self) -> int:
        """For how many milliseconds it ran."""

    @property
    def started(self) -> float:
        """When its handler began, in seconds of the monotonic clock; minus infinity if it never began."""

    @property
    def has_lost_payload(self) -> bool:
        """Its payload is known to be deleted."""


class Facts(Protocol[DeliveryT_contra]):
    """Says what is journalled of deliveries that end, with their verdicts and run times in ms."""

    def of_settlement(self, item: "Ended[DeliveryT_contra]", /) -> bytes:
        """Return the ``data`` of one event."""

    def of_acks(self, items: "Sequence[Ended[DeliveryT_contra]]", /) -> bytes:
        """Return the ``data`` of one entry that tells of many acks."""


async def settle(
    client: Redis | KeptConnection,
    source: str,
    keys: GroupKeys,
    items: Sequence[Ended[DeliveryT]],
    *,
    consumer: str,
    agreement: Agreement,
    journal: Journal,
    deletes: bool,
    reply_was_lost: bool,
    facts: "Facts[DeliveryT] | None",
    proof: "Proof | None" = None,
) -> Sequence[Settled] | None:
    """Settle many deliveries of one source (``settle.lua``).

    Returns one result a delivery, or None where every one was acknowledged. ``facts`` say what is journalled, if
    anything is.
    ``reply_was_lost``: an earlier call with these items got no answer. ``deletes``: what is acknowledged is deleted.
    ``proof``: of all of them.
    """
    words: list[Word] = [
        keys.group, consumer, agreement.max_deliveries, agreement.redelivery, *journal, int(reply_was_lost),
        int(deletes),
    ]  # fmt: skip
    add_verdicts(words, items, facts if journal.writes else None, _suffix(proof))
    places = (
        source, keys.stream, keys.retry, keys.dead, keys.agreement, keys.journal, keys.schedule, keys.suspects,
        keys.notes,
    )  # fmt: skip
    reply = await SETTLE.run(client, places, words)
    if isinstance(reply, int):
        return None
    return [_SETTLED[row] if isinstance(row, int) else Settled(Result(row[0]), text(row[1])) for row in reply]


def add_verdicts(
    words: list[Word],
    items: Sequence[Ended[DeliveryT]],
    facts: "Facts[DeliveryT] | None",
    proven: str,
) -> None:
    """Write the items as the script reads them: in runs with verb and delivery count in common. Hot."""
    outcomes = [item.verdict.outcome for item in items]
    counts = [item.job.times_delivered for item in items]
    losses = [item.has_lost_payload for item in items]
    first = 0
    while first < len(items):
        outcome, times, is_lost = outcomes[first], counts[first], losses[first]
        end = len(items)
        # else all are of one run, as mostly
        if first or True in losses or outcomes.count(outcome) < end or counts.count(times) < end:
            end = first + 1
            while end < len(items) and outcomes[end] is outcome and counts[end] == times and losses[end] is is_lost:
                end += 1
        run = items[first:end]
        count = f"{times}{proven}{_LOST if is_lost else ''}"
        if outcome is Outcome.ACK and len(run) > 1:
            _add_acks(words, run, facts, count)
        else:
            words += (outcome, count, len(run))
            _add_each(words, run, facts)
        first = end


def _add_each(words: list[Word], run: Sequence[Ended[DeliveryT]], facts: "Facts[DeliveryT] | None") -> None:
    """Write items of which each has an event of its own."""
    for item in run:
        delivery, verdict = item.job, item.verdict
        told = facts.of_settlement(item) if facts else b""
        words += (delivery.raw_entry_id, delivery.raw_id, told)
        if verdict.outcome is not Outcome.ACK:
            words += (verdict.reason, verdict.error, verdict.delay_ms or "", verdict.traceback)


def _add_acks(words: list[Word], run: Sequence[Ended[DeliveryT]], facts: "Facts[DeliveryT] | None", count: str) -> None:
    """Write items that are one entry of the journal, or a few, so that each stays small."""
    if facts is None:
        words += (MANY, count, len(run), b"")
        words += [item.job.raw_entry_id for item in run]
        return
    size = ACKS_IN_AN_ENTRY
    for first in range(0, len(run), size):
        together = run[first : first + size]
        told = facts.of_acks(together)
        if len(told) > ENTRY_BYTES and len(together) > 1:  # long names
            half = len(together) // 2
            _add_acks(words, together[:half], facts, count)
            _add_acks(words, together[half:], facts, count)
        else:
            words += (MANY, count, len(together), told)
            words += [item.job.raw_entry_id for item in together]


class Proof(NamedTuple):
    """What a call says of how lately deliveries were proven alive, in ms by the server's clock."""

    since_ms: int
    """Then, or later; of many that are settled: all of them."""
    until_ms: int
    """So long that counts: by then whoever made the call has given it up, and may have settled them by another one."""
    is_known_lost: bool = False
    """The worker knows that the payload is deleted, and that is reported."""


_LOST = ",lost"


def _suffix(proof: Proof | None) -> str:
    """Return what stands behind a delivery count."""
    return "" if proof is None else f",{proof.since_ms},{proof.until_ms}{_LOST if proof.is_known_lost else ''}"


# --- extend -------------------------------------------------------------------------------------------------


class Extension(IntEnum):
    """What became of an extension. Numbers as in ``extend_visibility.lua``."""

    REFUSED = 0
    """The delivery is not ours any more."""
    EXTENDED = 1
    PAYLOAD_GONE = 2
    VANISHED = 3
    """Somebody deleted our consumer, the group, or the entry with its reference; nobody else has the delivery."""
    LATE = 4
    """To be asked again; never handed out, since all of a call is."""
    TAKEN = 5
    """A read has just taken it, as the server's clock was set back, and will give it back: neither proven nor lost."""


_EXTENSIONS = tuple(Extension)


class Hold(IntEnum):
    """What became of a delivery that vanished. Numbers as in ``hold_again.lua``."""

    LOST = 0
    """It is not ours any more."""
    OURS = 1
    DELETED = 3
    """Its entry and its reference were deleted, which the call has reported: nobody else can run it."""


class Extensions(NamedTuple):
    """What came of a call that extended deliveries."""

    results: list[Extension]
    """One a delivery."""
    server_ms: int
    """What time the server had."""


@dataclass(frozen=True, slots=True)
class Extend(Generic[DeliveryT]):
    """Extends many deliveries of one source and consumer (``extend_visibility.lua``); one result a delivery."""

    keys: GroupKeys
    consumer: str
    reports: Journal
    """For the event of a deleted entry."""

    async def run(
        self,
        client: Redis | KeptConnection,
        source: str,
        deliveries: Sequence[DeliveryT],
        proofs: Sequence[Proof],
        *,
        begin: bool = False,
    ) -> Extensions:
        """Extend them, from the event loop. ``begin``: they are about to, which counts against suspects."""
        words, places = self._words(deliveries, proofs), self._places(source)
        if begin:
            places += (self.keys.suspects,)
        return _extensions(await EXTEND_VISIBILITY.run(client, places, words))

    def run_blocking(
        self, client: "redis.Redis", source: str, deliveries: Sequence[DeliveryT], proofs: Sequence[Proof]
    ) -> Extensions:
        """Extend them, from a thread that may block."""
        words = self._words(deliveries, proofs)
        return _extensions(EXTEND_VISIBILITY.run_blocking(client, self._places(source), words))

    async def hold_again(
        self, client: Redis | KeptConnection, source: str, deliveries: Sequence[DeliveryT], proofs: Sequence[Proof]
    ) -> list[Hold]:
        """Make deliveries that vanished ours again (``hold_again.lua``); return what became of each."""
        words: list[Word] = [self.keys.group, self.consumer, *self.reports]
        for delivery, proof in zip(deliveries, proofs, strict=True):
            words += (delivery.raw_entry_id, delivery.raw_id, f"{delivery.times_delivered}{_suffix(proof)}")
        keys = self.keys
        places = source, keys.stream, keys.agreement, keys.suspects, keys.notes, keys.journal
        reply = await HOLD_AGAIN.run(client, places, words)
        return [Hold(result) for result in _in_time(reply, _HELD_TOO_LATE)]

    def _places(self, source: str) -> tuple[str, ...]:
        return (source, self.keys.journal, self.keys.agreement, self.keys.stream, self.keys.retry)

    def _words(self, deliveries: Sequence[DeliveryT], proofs: Sequence[Proof]) -> list[Word]:
        words: list[Word] = [self.keys.group, self.consumer]
        for delivery, proof in zip(deliveries, proofs, strict=True):
            words += (delivery.raw_entry_id, f"{delivery.times_delivered}{_suffix(proof)}")
        return words


_HELD_TOO_LATE = 2
"""As ``hold_again.lua`` says that nothing can be told of a delivery, for now."""


def _in_time(codes: Sequence[int], too_late: int) -> Sequence[int]:
    if too_late in codes:
        raise TooLateError("the request expired before Redis ran it. Send it again.")
    return codes


def _extensions(reply: Sequence[int]) -> Extensions:
    *codes, server_ms = reply
    _in_time(codes, Extension.LATE)
    return Extensions([_EXTENSIONS[code] for code in codes], server_ms)
