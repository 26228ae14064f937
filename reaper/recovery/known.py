"""The knowledge that a watch of a group gives to the next watch in the same term, after a change of settings."""

from collections.abc import Mapping
from typing import NamedTuple

from reaper.recovery.dropped import Missing
from reaper.recovery.scanner import Scanned


class Known(NamedTuple):
    """The knowledge of one watch about one pair."""

    made: int
    was_made: bool
    has_scanned: bool
    """The watch has scanned the whole group and acted on it. Else the attributes below have the part so far."""
    journal_at: bytes
    missing: dict[tuple[str, bytes], Missing]
    """By source and consumer: the deliveries of consumers that somebody deleted."""
    scanned: Mapping[str, Scanned]
    """By source."""
