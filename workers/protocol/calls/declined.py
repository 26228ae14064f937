"""Calls that a script declined, and the time for which recovery waits.

The scripts derive this time from the beat of a group (``9_beat.lua``). `recovery_wait` does the same for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workers.protocol.meaning import in_words
from workers.protocol.messages import text, whole_number

GAP_PART = 3
"""A gap counts from this part of the visibility timeout on, as in ``9_beat.lua``."""


@dataclass(frozen=True, slots=True)
class RecoveryWait:
    """Recovery of a group waits, so that live workers can send a heartbeat first."""

    left_ms: int
    """For how long, if there is no other gap meanwhile."""
    gap_ms: int
    """For how long no heartbeat could be served before, or 0 if the group had none before."""
    gap_has_ended: bool = True
    """Heartbeats are served again. Otherwise recovery waits until they are, and then for ``left_ms``."""

    def __str__(self) -> str:
        """Return a phrase, for example ``recovery waits 12 s: no heartbeat could be served for 41 s``."""
        left = f"recovery waits {_seconds(self.left_ms)}"
        since = f"for {_seconds(self.gap_ms)}" if self.gap_ms else "in this group before"
        if not self.gap_has_ended:
            return f"{left} after the next heartbeat: none was served {since}"
        return f"{left}: no heartbeat could be served {since}"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"


def recovery_wait(settings: Mapping[str, str], now_ms: int) -> RecoveryWait | None:
    """Return for how long recovery waits at ``now_ms`` (server time), by the fields of the group settings, or None."""

    def number(name: str) -> int:
        return whole_number(settings.get(name, "").encode(), 0)

    in_force_ms, beat, unbroken = number("visibility_ms"), number("beat"), number("unbroken")
    if not in_force_ms:
        return None
    visibility_ms = max(in_force_ms, number("former_visibility_ms") if number("former_left") else 0)
    gap_ms = abs(now_ms - beat)
    if not beat or not unbroken or gap_ms * GAP_PART > in_force_ms:
        return RecoveryWait(visibility_ms, gap_ms if beat else 0, gap_has_ended=False)
    left_ms = min(unbroken, now_ms) + visibility_ms - now_ms
    return RecoveryWait(left_ms, number("gap")) if left_ms > 0 else None


class DeclineReason(StrEnum):
    """Reasons for a declined call, with the values that scripts return."""

    FENCED = "fenced"
    """Another replica holds the lease, or the group has another recovery mode."""
    PAUSED = "paused"
    """An operator has paused the group."""
    WAITS = "waits"
    """Heartbeats could not be served for a while, so live workers come first."""
    UNSUPPORTED = "unsupported"
    """The redelivery policy does not support the layout of the stream."""
    UNKNOWN = "unknown"
    """The group has no settings."""


@dataclass(frozen=True, slots=True)
class Declined:
    """A declined call. ``detail`` is the lease that was found, or the reason why the layout is unsupported."""

    reason: DeclineReason
    detail: str = ""
    wait: RecoveryWait | None = None
    """Set if the reason is `DeclineReason.WAITS`."""


def read_declined(code: bytes, *details: Any) -> Declined:
    """Return the declined call of a reply that is not ``ok``."""
    reason = DeclineReason(text(code))
    if reason is DeclineReason.WAITS:
        return Declined(reason, wait=RecoveryWait(*details))
    return Declined(reason, text(details[0]) if details else "")


UNSUPPORTED_LAYOUTS = {
    "several_groups": "the stream has several groups, so the others would read every copy. Set redelivery = "
    "'retry-stream' for this group",
    "explicit_ids": "producers write their own entry IDs, so a copy would move the last ID past them. Set redelivery = "
    "'retry-stream' for this group",
    "no_claim": "redelivery 'in-place' needs XREADGROUP … CLAIM (Redis 8.4), which this server or user lacks. Set "
    "redelivery = 'retry-stream' for this group, or apply the rules that `reaper acl` prints",
}


def explained(why: str) -> str:
    """Explain a script's reason, with the fix. Other reasons stay as they are."""
    return UNSUPPORTED_LAYOUTS.get(why) or in_words(why)
