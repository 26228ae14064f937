"""Who led, when, and why it ended: from the namespace's journal and the faults. Pure."""

from dataclasses import dataclass
from itertools import zip_longest

from reaper.drill.evidence import Evidence
from reaper.drill.faults import FaultKind
from workers.protocol.events import EventName, LifecycleEvent


@dataclass(frozen=True, slots=True)
class Holding:
    """One holding of the lease. ``since`` and ``until`` are seconds of the drill's clock."""

    holder: str
    token: int
    since: float
    until: float | None
    ended: str
    """``killed``, ``paused``, the reason that the holder gave, ``expired``, or ``running`` where it had not ended."""


def terms(evidence: Evidence) -> list[Holding]:
    """Return every term, in order."""
    acquired = evidence.named(EventName.LEASE_ACQUIRED)
    return [_term(evidence, event, following) for event, following in zip_longest(acquired, acquired[1:])]


def _term(evidence: Evidence, acquired: LifecycleEvent, following: LifecycleEvent | None) -> Holding:
    holder = str(acquired.data["holder"])
    until, ended = _end(evidence, holder, None if following is None else evidence.local(following))
    return Holding(holder, int(acquired.data["token"]), evidence.local(acquired), until, ended)


def _end(evidence: Evidence, holder: str, next_since: float | None) -> tuple[float | None, str]:
    """Return when and why the term of ``holder`` ended. What was done to it explains more than what it says of it."""
    hit = {fault.kind: fault for fault in evidence.faults if fault.holder and fault.holder == holder}
    for kind in (FaultKind.KILL_LEADER, FaultKind.KILL_REAPERS):
        if kind in hit:
            return hit[kind].at, "killed"
    if FaultKind.PAUSE_LEADER in hit:
        return next_since, "paused"
    for event in evidence.named(EventName.LEASE_RELEASED, EventName.LEASE_LOST):
        if event.data.get("holder") == holder:
            return evidence.local(event), str(event.data.get("reason", "lost"))
    return (next_since, "expired") if next_since is not None else (None, "running")
