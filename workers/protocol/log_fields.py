"""Fields of a log line: ``key=value`` for people, and keys in JSON log lines.

A log call has one fixed message, and at most one argument: ``logger.info("recovery paused: %s", fields(group="a/b"))``.
A test checks every call.
"""

from typing import Any

from workers.protocol.messages import on_one_line, text

_QUOTED = frozenset(' ="')


class Fields:
    """The fields of one log line, in their order. `fields` makes them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self.facts.items())


def fields(**facts: Any) -> Fields:
    """Return the argument of a log call. Fields that are None are left out. Bytes become text."""
    return Fields(
        {name: text(value) if isinstance(value, bytes) else value for name, value in facts.items() if value is not None}
    )


def _shown(value: Any) -> str:
    shown = str(value).lower() if isinstance(value, bool) else on_one_line(str(value))
    if shown and not _QUOTED & set(shown):
        return shown
    return '"' + shown.replace('"', '\\"') + '"'
