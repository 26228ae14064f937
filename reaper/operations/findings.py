"""A finding: the result of one check of `reaper doctor`."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

NOT_SEEN = "the user lacks the permission. `reaper acl read-only` prints the rules to apply."


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    UNKNOWN = "unknown"
    """Could not be asked."""
    WARNING = "warning"
    """A risk to remove or to accept; nothing fails because of it now."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    check: str
    text: str
    group: str = ""
    """The group, or empty if the finding concerns all."""


ok = partial(Finding, Level.OK)
note = partial(Finding, Level.NOTE)
unknown = partial(Finding, Level.UNKNOWN)
warning = partial(Finding, Level.WARNING)
wrong = partial(Finding, Level.WRONG)
