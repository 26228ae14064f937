"""The events of a report."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from workers.protocol.errors import ConfigurationError

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
CLOCKS_DIFFER = timedelta(days=1)
"""The server's clock may be ahead of this machine's by this time."""


def parse_instant(text: str, now: datetime) -> datetime:
    """Read ``2026-11-20``, ``2026-11-20T15:04`` (UTC by default), or ``36h`` for 36 hours ago (m, h, d, w).

    Raises ConfigurationError.
    """
    ago = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    try:
        if ago:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        instant = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"{text!r} is not a time. Write 2026-11-20, 2026-11-20T15:04 (UTC), or 36h for the last 36 hours (m, "
            "h, d, w)."
        ) from error
    return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Scope:
    """Events from ``since`` on and before ``until``, of ``groups`` (as ``billing`` or ``orders/billing``) or of all.

    An event that claims to be later than ``now`` and `CLOCKS_DIFFER`, or from before ``earliest``, was written while a
    clock was wrong. It would stretch every course over time, so no question sees it.
    """

    now: datetime
    since: datetime | None = None
    until: datetime | None = None
    groups: tuple[str, ...] = ()
    earliest: datetime = datetime(2018, 1, 1, tzinfo=UTC)
    """No Redis had streams before."""

    def parameters(self) -> dict[str, Any]:
        """Return the scope as parameters of SQL."""
        return {
            "since": self.since,
            "until": self.until,
            "earliest": self.earliest,
            "latest": self.now + CLOCKS_DIFFER,
            "groups": json.dumps(self.groups),
        }

    def as_json(self) -> dict[str, object]:
        """Return the scope for a report."""
        return {
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat() if self.until else None,
            "groups": list(self.groups),
        }
