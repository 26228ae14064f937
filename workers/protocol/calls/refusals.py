"""Rejections: calls that a script did not carry out, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workers.protocol.calls.beat import RecoveryWait
from workers.protocol.meaning import in_words
from workers.protocol.messages import text


class RefusalKind(StrEnum):
    """Reasons for a rejection, with the values that scripts return."""

    STALE = "stale"
    """Another fence stands there, or the group has agreed on another recovery mode."""
    PAUSED = "paused"
    """An operator has paused the group."""
    WAITS = "waits"
    """Heartbeats could not be served for a while: live workers come first."""
    REFUSED = "refused"
    """The policy cannot work with the stream's layout."""
    UNKNOWN = "unknown"
    """The group has no settings."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejected call. ``detail`` is the fence that was found, or the reason why the layout is unsupported."""

    kind: RefusalKind
    detail: str = ""
    wait: RecoveryWait | None = None
    """For how long recovery waits, where it does."""


def read_refusal(reply: Sequence[Any]) -> Refusal:
    """Read a reply that is no ``ok``."""
    kind, detail = RefusalKind(text(reply[0])), reply[1] if len(reply) > 1 else b""
    if kind is RefusalKind.WAITS:
        return Refusal(kind, wait=RecoveryWait(*reply[1:]))
    return Refusal(kind, text(detail))


LAYOUT_REFUSALS = {
    "several_groups": "the stream has several groups, so the others would read every copy. Set redelivery = "
    "'retry-stream' for this group",
    "explicit_ids": "producers write their own entry IDs, so a copy would move the last ID past them. Set redelivery = "
    "'retry-stream' for this group",
    "no_claim": "redelivery 'in-place' needs XREADGROUP … CLAIM (Redis 8.4), which this server or user lacks. Set "
    "redelivery = 'retry-stream' for this group, or apply the rules that `reaper acl` prints",
}


def explained(why: str) -> str:
    """Explain a script's reason, with the fix. Other reasons stay as they are."""
    return LAYOUT_REFUSALS.get(why) or in_words(why)
