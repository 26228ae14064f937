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
    mode: RecoveryMode = RecoveryMode.REAPER
    """The setting of the workers."""
    promises: bool = True
    """Stalled jobs come back, and none is lost. Without recovery the ledger shows how many stay behind."""


RECOVERIES = {
    recovery.name: recovery
    for recovery in (
        Recovery("none", "without recovery", promises=False),
        Recovery("reaper", "with the reaper", by_reapers=True),
        Recovery("embedded", "embedded in the workers", mode=RecoveryMode.EMBEDDED),
    )
}
