"""Log lines on stderr: for people, or JSON, one object a line. Inside a span they carry its trace and span ID.

What is logged quotes what came from outside. So a record is one line, whatever it holds, as what commands print
(`workers.runtime.printing`).
"""

import json
import logging
from datetime import UTC, datetime
from typing import TextIO

from opentelemetry import trace

from workers.protocol.address import without_logins
from workers.protocol.messages import on_one_line

CONSOLE, JSON = "console", "json"
LOG_FORMATS = (CONSOLE, JSON)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
INDENT = "  "
"""Before each line of a traceback: an error's text that holds newlines forges no log line."""


def span_ids() -> dict[str, str]:
    """Return the trace and span ID of the span we are in; nothing outside of any."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


class ConsoleFormatter(logging.Formatter):
    """One line for people; a traceback follows, indented."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        ids = (f"{name}={value}" for name, value in span_ids().items())
        lines = [" ".join([self.formatMessage(record), *ids])]
        # Not kept in the record, as logging itself would: other handlers have formatters of their own.
        if record.exc_info:
            lines += self.formatException(record.exc_info).split("\n")
        if record.stack_info:
            lines += self.formatStack(record.stack_info).split("\n")
        return f"\n{INDENT}".join(on_one_line(without_logins(line)) for line in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at (UTC), level, logger, message, trace_id and span_id; a traceback is `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, in ASCII."""
        facts = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_logins(record.getMessage()),
            "thread": record.threadName,
            **span_ids(),
        }
        if record.exc_info:
            facts["error"] = without_logins(self.formatException(record.exc_info))
        if record.stack_info:
            facts["stack"] = self.formatStack(record.stack_info)
        return json.dumps(facts)


def handler_for(log_format: str) -> logging.StreamHandler[TextIO]:
    """Return what writes log lines to standard error, as it is now."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == JSON else ConsoleFormatter())
    return handler


def log_to_stderr(level: int = logging.INFO, log_format: str = CONSOLE) -> None:
    """Write log lines to stderr: standard output belongs to results."""
    logging.basicConfig(level=level, handlers=[handler_for(log_format)])
