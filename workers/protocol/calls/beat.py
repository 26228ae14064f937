"""The beat of a group: when Redis could last serve a heartbeat, and for how long recovery waits after a gap.

Scripts note it in the group settings and decide by it (``heartbeat.lua``). `recovery_wait` says the same for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.protocol.messages import whole_number

GAP_PART = 3
"""A gap counts from this part of the visibility timeout on, as in ``heartbeat.lua``."""


@dataclass(frozen=True, slots=True)
class RecoveryWait:
    """Recovery of a group waits, so that live workers can send a heartbeat first."""

    left_ms: int
    """For how long, if there is no other gap meanwhile."""
    gap_ms: int
    """For how long no heartbeat could be served before; 0 = it is not known, because there was none before."""
    has_ended: bool = True
    """Heartbeats are served again; else recovery waits until they are, and for ``left_ms`` more."""

    def facts(self) -> dict[str, object]:
        """Return what a log line reports of it, in seconds."""
        gap_s = round(self.gap_ms / 1000, 1) if self.gap_ms else None
        return {"wait_s": round(self.left_ms / 1000, 1), "gap_s": gap_s, "has_ended": self.has_ended}

    def __str__(self) -> str:
        """Say for how long recovery waits, and why: ``recovery waits 12 s: no heartbeat could be served for 41 s``."""
        left, gap = f"recovery waits {_seconds(self.left_ms)}", f"{_seconds(self.gap_ms)}"
        if not self.has_ended:
            since = f"for {gap}" if self.gap_ms else "in this group yet"
            return f"{left} after the next heartbeat: none was served {since}"
        if not self.gap_ms:
            return f"{left}: heartbeats of this group are served only since a moment ago"
        return f"{left}: no heartbeat could be served for {gap}"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"


def recovery_wait(settings: Mapping[str, str], now_ms: int) -> RecoveryWait | None:
    """Return for how long recovery waits at ``now_ms`` (server time), by the fields of the group settings.

    None where it does not wait, and where the group has no visibility timeout: then nobody recovers anything in it.
    """

    def number(name: str) -> int:
        return whole_number(settings.get(name, "").encode(), 0)

    agreed_ms, beat, unbroken = number("visibility_ms"), number("beat"), number("unbroken")
    if not agreed_ms:
        return None
    visibility_ms = max(agreed_ms, number("former_visibility_ms") if number("former_until") > now_ms else 0)
    gap_ms = abs(now_ms - beat)
    if not beat or not unbroken or gap_ms * GAP_PART > agreed_ms:
        return RecoveryWait(visibility_ms, gap_ms if beat else 0, has_ended=False)
    left_ms = min(unbroken, now_ms) + visibility_ms - now_ms
    return RecoveryWait(left_ms, number("gap")) if left_ms > 0 else None
