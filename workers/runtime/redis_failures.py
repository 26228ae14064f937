"""Decides which failures and recoveries of Redis are new, so that each is logged once. Pure.

An outage concerns all parts of the process. It is logged when it begins, for each new cause, and when it ends. A
rejection concerns one part, and is logged once for each cause. A part that works and fails in turns is not logged each
time.
"""

from dataclasses import dataclass, field
from math import inf

from workers.protocol.meaning import Meaning, in_words, is_contact_error, kind_of, meaning_of

RETELL_S = 60.0
"""Seconds before the same rejection of a part is logged again, if the part worked in between."""


@dataclass(slots=True)
class RedisFailures:
    """The current failures of Redis for this process. Instants are seconds of one monotonic clock."""

    _away: set[str] = field(default_factory=set)
    """Parts without contact."""
    _away_since: float = 0.0
    _locked_out: str = ""
    _told_of_outage: set[str] = field(default_factory=set)
    _refused: dict[str, set[str]] = field(default_factory=dict)
    """The causes since each part last worked."""
    _said: dict[str, str] = field(default_factory=dict)
    """The newest cause of each rejected part, for people."""
    _told_at: dict[tuple[str, str], float] = field(default_factory=dict)
    _owes_end: dict[str, float] = field(default_factory=dict)
    """The begin of each rejection that was logged."""

    @property
    def refusals(self) -> list[str]:
        """Return the current rejections as ``part: cause``. Empty during an outage. For any thread."""
        locked_out = [self._locked_out] if self._locked_out else []
        return locked_out + [f"{part}: {why}" for part, why in self._said.copy().items()]

    def is_kept_from(self, part: str) -> bool:
        """Whether ``part`` has not worked since it failed. For any thread."""
        return part in self._refused or part in self._away

    def failed(self, part: str, error: BaseException, now: float) -> bool:
        """Record that ``part`` failed. Return whether that must be logged."""
        return self._is_away(part, error, now) if is_contact_error(error) else self._is_refused(part, error, now)

    def _is_away(self, part: str, error: BaseException, now: float) -> bool:
        if not self._away:
            self._away_since = now
            self._told_of_outage.clear()
        self._away.add(part)
        if meaning_of(error) is Meaning.LOCKED_OUT:
            self._locked_out = str(error)
        kind = kind_of(error)
        is_news = kind not in self._told_of_outage and bool(kind or not self._told_of_outage)
        self._told_of_outage.add(kind)
        return is_news

    def _is_refused(self, part: str, error: BaseException, now: float) -> bool:
        kind = kind_of(error)
        met = self._refused.setdefault(part, set())
        self._said[part] = in_words(error)
        if kind in met:
            return False
        met.add(kind)
        if now - self._told_at.get((part, kind), -inf) < RETELL_S:
            return False
        self._told_at[part, kind] = now
        self._owes_end.setdefault(part, now)
        return True

    def works(self, part: str, now: float) -> dict[str, float]:
        """Record that ``part`` works. Return the log fields of an end: seconds of the outage and of the rejection."""
        if not (self._away or self._refused):
            return {}
        ended = {}
        was_away = bool(self._away)
        self._away.discard(part)
        self._locked_out = ""
        self._refused.pop(part, None)
        self._said.pop(part, None)
        if was_away and not self._away:
            ended["outage_s"] = round(now - self._away_since, 1)
        if part in self._owes_end:
            ended["rejected_s"] = round(now - self._owes_end.pop(part), 1)
        return ended
