"""The ways to get stalled jobs back that a drill can play, each on the same faults."""

from dataclasses import dataclass
from enum import StrEnum

from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import RecoveryMode
from workers.runtime.settings_errors import did_you_mean


class Cast(StrEnum):
    """Which workers play."""

    OURS = "ours"
    """Ours, and the last one a bare redis-py loop."""
    PUBLISHED = "published"
    """None of ours: the loop that is usually published."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One way to get stalled jobs back."""

    name: str
    title: str
    by_reapers: bool = False
    """Reaper replicas are started, so somebody leads."""
    cast: Cast = Cast.OURS
    mode: RecoveryMode = RecoveryMode.REAPER
    """What our workers are set to."""
    recovers: bool = True
    """Stalled jobs come back at all, so an act ends when none is left."""
    promises: bool = True
    """It is ours, and what goes wrong is our fault. The others are references: their ledger shows what they do."""


RECOVERIES = {
    recovery.name: recovery
    for recovery in (
        Recovery("none", "without recovery", recovers=False, promises=False),
        Recovery("reaper", "with the reaper", by_reapers=True),
        Recovery("embedded", "embedded in the workers", mode=RecoveryMode.EMBEDDED),
        Recovery("claim", "by the workers, whose reads claim", mode=RecoveryMode.CLAIM),
        Recovery("published", "the loop as it is usually published", cast=Cast.PUBLISHED, promises=False),
    )
}


def find_recovery(name: str) -> Recovery:
    """Return the recovery of that name. Raises ConfigurationError."""
    if name not in RECOVERIES:
        raise ConfigurationError(f"there is no --recovery {name!r}{did_you_mean(name, RECOVERIES)}")
    return RECOVERIES[name]
