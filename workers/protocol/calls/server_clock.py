"""What a call that judges by idle times says of the server's clock: one word among its arguments."""

from collections.abc import Iterable
from typing import NamedTuple


class Step(NamedTuple):
    """The server's clock was set ahead."""

    before_ms: int
    """What it would show at the moment of the step, or a little later, had nobody set it: ms since the epoch."""
    by_ms: int


def clock_word(not_after_ms: int, steps: Iterable[Step]) -> str:
    """Say until when a call may run, by the server's clock, and what steps are in no idle time: as scripts read it."""
    return ",".join([str(not_after_ms), *(f"{step.before_ms}+{step.by_ms}" for step in steps)])
