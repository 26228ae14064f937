"""Durations as people write them, for example ``500ms`` or ``24h``. A number without a unit is seconds."""

import re
from datetime import timedelta

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_DURATION = re.compile(rf"({_NUMBER})\s*({'|'.join(_UNITS_S)})?")
A_DURATION = "a duration, such as 30s, 5m or 24h"


def seconds_in(written: str) -> float | None:
    """Return the seconds of ``30``, ``1.5s``, ``5m``, ``24h`` or ``30d``. None means that it is not a duration."""
    found = _DURATION.fullmatch(written.strip())
    return float(found[1]) * _UNITS_S[found[2] or "s"] if found else None


def written(duration: timedelta) -> str:
    """Return a duration in the largest unit that gives a whole number, for example ``5m`` or ``0.5s``."""
    seconds = duration.total_seconds()
    for unit, size in reversed(_UNITS_S.items()):
        if seconds and size >= 1 and not seconds % size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.15g}s"
