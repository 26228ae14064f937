"""Decides which failures and recoveries of Redis are new, so that each is logged once. Pure.

An outage concerns all parts of the process. It is logged when it begins, for each new cause, and when it ends. A
denial concerns one part, and is logged once for each cause. A part that works and fails in turns is not logged each
time.
"""

from dataclasses import dataclass, field
from math import inf

from workers.protocol.meaning import Meaning, in_words, is_contact_error, kind_of, meaning_of

RETELL_S = 60.0
"""Seconds before the same denial of a part is logged again, if the part worked in between."""
_OUTAGE = ""


@dataclass(slots=True)
class _Failure:
    """A denied part, or an outage."""

    since: float
    kinds: set[str] = field(default_factory=set)
    cause: str = ""
    """For people. Empty while the server is only out of reach."""
    is_logged: bool = False


class RedisFailures:
    """The current failures of Redis for this process. Instants are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}
        self._away: set[str] = set()
        """Parts without contact."""
        self._logged_at: dict[tuple[str, str], float] = {}

    @property
    def denials(self) -> list[str]:
        """Return the current denials as ``part: cause``. For any thread."""
        failures = self._failures.copy().items()
        return [f"{part}: {one.cause}" if part != _OUTAGE else one.cause for part, one in failures if one.cause]

    def failed(self, part: str, error: BaseException, now: float) -> bool:
        """Record that ``part`` failed. Return whether that must be logged."""
        is_away, kind = is_contact_error(error), kind_of(error)
        failure = self._failures.setdefault(_OUTAGE if is_away else part, _Failure(now))
        is_new = kind not in failure.kinds and bool(kind or not failure.kinds)
        failure.kinds.add(kind)
        if is_away:
            self._away.add(part)
            if meaning_of(error) is Meaning.LOCKED_OUT:
                failure.cause = str(error)
        else:
            failure.cause = in_words(error)
            is_new = is_new and now - self._logged_at.get((part, kind), -inf) >= RETELL_S
        if is_new:
            failure.is_logged = True
            self._logged_at[part, kind] = now
        return is_new

    def works(self, part: str, now: float) -> dict[str, float]:
        """Record that ``part`` works. Return the log fields of an end: seconds of the outage and of the denial."""
        if not self._failures:
            return {}
        self._away.discard(part)
        ended = {}
        if not self._away and (outage := self._failures.pop(_OUTAGE, None)):
            ended["outage_s"] = round(now - outage.since, 1)
        denial = self._failures.pop(part, None)
        if denial and denial.is_logged:
            ended["denied_s"] = round(now - denial.since, 1)
        return ended
