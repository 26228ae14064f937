"""How a delivery ends, as a worker says it, and the events that a worker writes by itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from workers.protocol.messages import text
from workers.protocol.scripts import load_script

WRITE_EVENTS = load_script("workers.protocol", "write_events")

Word = str | bytes | int
DeliveryT_co = TypeVar("DeliveryT_co", covariant=True)


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


WORDS_PER_EVENT = 3
"""Name, job ID, and data in JSON."""


def events_command(journal_key: str, maxlen: int, words: Sequence[str | bytes]) -> tuple[Word, ...]:
    """Return the command that writes events (``write_events.lua``), for who sends without waiting for replies.

    The server knows the script once `WRITE_EVENTS.source` is loaded.
    """
    return ("EVALSHA", WRITE_EVENTS.digest, 1, journal_key, maxlen, *words)


def read_written(reply: Any) -> str:
    """Read the reply: '' where the events were written, or why the journal refuses them."""
    return text(reply) if isinstance(reply, bytes) else ""
