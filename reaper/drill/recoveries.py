"""The recovery modes that a drill can play, each on the same faults."""

from dataclasses import dataclass

from workers.protocol.messages import RecoveryMode


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery mode."""

    name: str
    title: str
    by_reapers: bool = False
    """Reaper replicas are started, and one of them leads."""
    bare: bool = False
    """All workers are bare loops that claim what looks stalled. Else only the last worker may be a bare loop."""
    mode: RecoveryMode = RecoveryMode.REAPER
    """The setting of the workers."""
    recovers: bool = True
    """Stalled jobs come back at all, so an act ends when none is left."""
    promises: bool = True
    """It keeps the promises of stream-reaper. The others are references: their ledger shows what happens without."""


RECOVERIES = {
    recovery.name: recovery
    for recovery in (
        Recovery("none", "without recovery", recovers=False, promises=False),
        Recovery("reaper", "with the reaper", by_reapers=True),
        Recovery("embedded", "embedded in the workers", mode=RecoveryMode.EMBEDDED),
        Recovery("claim", "by the workers, whose reads claim", mode=RecoveryMode.CLAIM),
        Recovery("published", "the loop as it is usually published", bare=True, promises=False),
    )
}
