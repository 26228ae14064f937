"""Writes durations for people."""

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def duration(milliseconds: int) -> str:
    """Return a duration, for example ``850 ms``, ``3.2 s`` or ``4 min``."""
    for size, unit in _UNITS:
        if milliseconds >= size:
            amount = milliseconds / size
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{milliseconds} ms"
