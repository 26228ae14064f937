"""What a `Grace` has seen, asked from outside: what counts for every group, whatever its visibility timeout."""

from workers.runtime.grace import Grace


def is_away(grace: Grace, now_ms: int) -> bool:
    """Tell whether Redis has been out of reach for so long that it counts."""
    return grace._lost_ms(now_ms) > grace._outage_ms


def was_away(grace: Grace) -> bool:
    """Tell whether that was so, and is over."""
    return any(lost_ms > grace._outage_ms for _, lost_ms in grace._outages)
