"""How a delivery ends, as a worker says it, and the events that a worker writes by itself."""

from dataclasses import dataclass, field
from enum import StrEnum


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
