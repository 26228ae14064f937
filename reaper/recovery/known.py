"""What one watch of a group hands on to the next one in the same term, after the settings of the group were changed."""

from collections.abc import Mapping
from typing import NamedTuple

from reaper.recovery.dropped import Missing
from reaper.recovery.scanner import Scanned


class Known(NamedTuple):
    """What one watch knows of a pair, for the one that follows in the same term."""

    made: int
    was_made: bool
    has_scanned: bool
    """All of it, and has done what follows from that; else what it has seen so far is here."""
    journal_at: bytes
    missing: dict[tuple[str, bytes], Missing]
    """By source and consumer: what went with consumers that somebody deleted."""
    scanned: Mapping[str, Scanned]
    """By source."""
