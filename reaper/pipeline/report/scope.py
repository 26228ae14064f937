"""Which events a report is about."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from reaper.pipeline.analysis.columns import EARLIEST, is_misdated, stream_of
from workers.protocol.errors import ConfigurationError

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_instant(text: str, now: datetime) -> datetime:
    """Read ``2026-11-20``, ``2026-11-20T15:04`` (UTC, unless it says otherwise), or ``36h``: so long ago (m, h, d, w).

    Raises ConfigurationError.
    """
    ago = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    try:
        if ago:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        instant = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"{text!r} is no time: write 2026-11-20, 2026-11-20T15:04 (UTC), or 36h for the last 36 hours (m, h, d, w)."
        ) from error
    return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Scope:
    """From (inclusive), until (exclusive), and which groups: ``billing`` or ``orders/billing``; none = all."""

    since: datetime | None = None
    until: datetime | None = None
    groups: tuple[str, ...] = ()
    latest: datetime | None = None
    """What claims to be later, or earlier than `EARLIEST`, was written while a clock was wrong: it would stretch every
    course over time. None: neither is asked."""

    def misdated(self, events: DataFrame) -> DataFrame:
        """Choose the events that are left out because they claim to be earlier or later than anything can be."""
        if self.latest is None:
            return events.limit(0)
        return events.where(is_misdated(self.latest))

    def of_events(self, events: DataFrame) -> DataFrame:
        """Choose events. Those that belong to no group, such as elections, are never left out for their group."""
        chosen = self._in_time(events)
        return chosen.where(F.col("group").isNull() | self._of_groups(stream_of("stream"))) if self.groups else chosen

    def of_dead_letters(self, dead_letters: DataFrame) -> DataFrame:
        """Choose dead letters."""
        chosen = self._in_time(dead_letters)
        return chosen.where(self._of_groups(F.col("source_stream"))) if self.groups else chosen

    def _in_time(self, rows: DataFrame) -> DataFrame:
        # By date too: whole folders are then left out.
        if self.since:
            rows = rows.where((F.col("date") >= F.lit(self.since.date())) & (F.col("at") >= F.lit(self.since)))
        if self.latest:
            rows = rows.where(F.col("date") >= F.lit(EARLIEST.date()))
        for end in (self.until, self.latest):
            if end:
                rows = rows.where((F.col("date") <= F.lit(end.date())) & (F.col("at") < F.lit(end)))
        return rows

    def _of_groups(self, stream: Column) -> Column:
        chosen = F.lit(False)
        for name in self.groups:
            # Names may have slashes, too: all groups that are written so.
            chosen |= (F.col("group") == name) | (F.concat(stream, F.lit("/"), F.col("group")) == name)
        return chosen

    def as_json(self) -> dict[str, object]:
        """Return the scope for a report."""
        return {
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat() if self.until else None,
            "groups": list(self.groups),
        }
