"""Writes log lines to standard error, as text or as JSON. Inside a span they have its trace ID and span ID.

Messages can quote text from outside. So each record is one line, and characters that cannot be printed are escaped, as
in the output of commands (`workers.runtime.printing`).
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

from workers.protocol.address import without_logins
from workers.protocol.log_fields import Fields
from workers.protocol.messages import on_one_line

CONSOLE, JSON = "console", "json"
LOG_FORMATS = (CONSOLE, JSON)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
INDENT = "  "
"""Indents each line of a traceback, so that newlines in an error cannot forge a log line."""


def span_ids() -> dict[str, str]:
    """Return the trace ID and span ID of the current span. Empty outside of a span."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


class ConsoleFormatter(logging.Formatter):
    """One line for people. An indented traceback can follow."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        """Return the first line."""
        ids = (f"{name}={value}" for name, value in span_ids().items())
        return on_one_line(" ".join([super().formatMessage(record), *ids]))

    def format(self, record: logging.LogRecord) -> str:
        """Return all lines."""
        return f"\n{INDENT}".join(on_one_line(without_logins(line)) for line in super().format(record).split("\n"))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else without_logins(str(value))


class JsonFormatter(logging.Formatter):
    """One JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, in ASCII. The fields of the message are keys of their own."""
        match record.args:
            case (Fields(facts=own),):
                message = str(record.msg).removesuffix(": %s")
            case _:
                message, own = record.getMessage(), {}
        facts = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_logins(message),
            "thread": record.threadName,
            **{name: _plain(value) for name, value in own.items()},
            **span_ids(),
        }
        if record.exc_info:
            facts["error"] = without_logins(self.formatException(record.exc_info))
        return json.dumps(facts)


def log_to_stderr(level: str, log_format: str) -> None:
    """Write log lines of at least ``level`` to standard error, because standard output has the results."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == JSON else ConsoleFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
