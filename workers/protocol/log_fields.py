"""Facts of a log line: ``key=value`` for people, and keys of their own in JSON log lines."""

from typing import Any

from workers.protocol.messages import on_one_line, text

_QUOTED = frozenset(' ="')


class Fields:
    """Facts that end a log line. `fields` makes them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    def __str__(self) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in self.facts.items())


def fields(**facts: Any) -> Fields:
    """Return facts for the last argument of a log call. Facts that are None are left out. Bytes become text.

    Example: ``logger.info("recovery paused: %s", fields(group="orders/billing"))``.
    """
    return Fields(
        {name: text(value) if isinstance(value, bytes) else value for name, value in facts.items() if value is not None}
    )


def _shown(value: Any) -> str:
    shown = on_one_line(str(value))
    return f'"{shown}"' if not shown or _QUOTED & set(shown) else shown
