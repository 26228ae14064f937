"""Whether Redis serves this process, part by part, and what of that is news: pure, told what was met and when.

An outage concerns everybody, so its parts are told of together: once when it begins, once for each new reason that the
server gives, and once when it ends. A refusal concerns one part, however the others fare, and is told once for each
reason; a part that is refused in turns with working fills no log.
"""

from dataclasses import dataclass, field
from math import inf

from workers.protocol.meaning import Meaning, in_words, is_contact_error, kind_of, meaning_of

RETELL_S = 60.0
"""So soon is the same refusal of the same part told again, where the part worked in between."""


@dataclass(slots=True)
class Troubles:
    """What keeps this process from its work now. Instants are seconds of one monotonic clock."""

    _away: set[str] = field(default_factory=set)
    """Parts without contact."""
    _away_since: float = 0.0
    _locked_out: str = ""
    _told_of_outage: set[str] = field(default_factory=set)
    _refused: dict[str, set[str]] = field(default_factory=dict)
    """By part, the reasons that were met since it last worked."""
    _said: dict[str, str] = field(default_factory=dict)
    """The newest reason of each part that is refused, for people."""
    _told_at: dict[tuple[str, str], float] = field(default_factory=dict)
    _owes_end: dict[str, float] = field(default_factory=dict)
    """Since when parts are refused whose refusal was told."""

    @property
    def refusals(self) -> list[str]:
        """Return what Redis refuses now, as ``part: reason``; empty where it serves us, or is away. For any thread."""
        locked_out = [self._locked_out] if self._locked_out else []
        return locked_out + [f"{part}: {why}" for part, why in self._said.copy().items()]

    def is_kept_from(self, part: str) -> bool:
        """Tell whether ``part`` has not worked since it failed. For any thread."""
        return part in self._refused or part in self._away

    def failed(self, part: str, error: BaseException, now: float) -> bool:
        """Note that ``part`` met ``error``; return whether that is news."""
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

    def works(self, part: str, now: float) -> str:
        """Note that ``part`` works; return what that ends, for people, or nothing."""
        if not (self._away or self._refused):
            return ""
        ended = []
        was_away = bool(self._away)
        self._away.discard(part)
        self._locked_out = ""
        self._refused.pop(part, None)
        self._said.pop(part, None)
        if was_away and not self._away:
            ended.append(f"Redis serves us again after {now - self._away_since:.1f} s")
        if part in self._owes_end:
            ended.append(f"{part} works again after {now - self._owes_end.pop(part):.1f} s")
        return "; ".join(ended)
