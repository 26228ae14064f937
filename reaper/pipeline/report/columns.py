"""The titles and formats of the columns of the report's tables, by name. Pure."""

from collections.abc import Callable, Sequence

from reaper.pipeline.report import html, words
from reaper.pipeline.report.html import Column, Markup, Row, number, text


def _phrase(name: str) -> Callable[[Row], str]:
    return lambda row: str(row[name] or words.NOTHING).replace("_", " ")


def _code(name: str) -> Callable[[Row], str]:
    return lambda row: html.code(str(row[name]))


def _count(title: str, name: str) -> Column:
    return number(title, lambda row: words.count(row[name]))


def _time(title: str, name: str) -> Column:
    return number(title, lambda row: words.duration(row[name]))


def _instant(title: str, name: str) -> Column:
    return text(title, lambda row: words.instant(row[name]))


def _gap(row: Row) -> str:
    if row["gap_ms"] is not None:
        return words.duration(row["gap_ms"])
    return f"≤ {words.duration(row['gap_at_most_ms'])}" if row["gap_at_most_ms"] is not None else words.NOTHING


def _lasted(row: Row) -> str:
    is_known = row["began_ms"] is not None and row["ended_ms"] is not None
    return words.duration(row["ended_ms"] - row["began_ms"] if is_known else None)


def _ids(row: Row) -> Markup:
    more = f" and {row['left']:,} more, in the JSON file" if row["left"] else ""
    return Markup(f"<span>{', '.join(html.code(job) for job in row['ids'])}{more}</span>")


_COLUMNS = {
    "group": text("group", words.group),
    "of_type": text("type", lambda row: row["type"] or words.NOTHING),
    "ids": text("which", _ids),
    "cause": text("cause", _phrase("cause")),
    "meaning": text("meaning", lambda row: row["meaning"]),
    "event": text("event", lambda row: row["event"]),
    "last_event": text("last event", _phrase("event")),
    "mode": text("recovered by", _phrase("mode")),
    "outcome": text("outcome", _phrase("outcome")),
    "reason": text("reason", _phrase("reason")),
    "verb": text("verb", lambda row: row["verb"]),
    "of": text("of a", lambda row: row["of"]),
    "delivery": number("delivery", lambda row: str(row["delivery"])),
    "period": _instant("from (UTC)", "period"),
    "first": _instant("from (UTC)", "first_ms"),
    "last": _instant("until (UTC)", "last_ms"),
    "worker": text("worker", _code("worker")),
    "journal": text("journal", _code("stream")),
    "share": number("share", lambda row: words.share(row["permille"])),
    "visibility": _time("timeout", "visibility_ms"),
    "longest_wait": _time("longest wait", "longest_wait_ms"),
    "stalled": _count("stalled", "stalls"),
    "starts": _count("second starts", "starts"),
    "early": _count("too early", "early"),
    "done": _count("done", "acked"),
    "acknowledged": _count("jobs", "n"),
    "times": _count("times", "n"),
    **{
        name: _count(name, name)
        for name in ("jobs", "entries", "events", "calls", "recoveries", "processes", "deliveries")
    },
    **{name: _time("p99.9" if name == "p999" else name, name) for name in ("p50", "p95", "p99", "p999", "max")},
    "advised_group": text("group", lambda row: words.group_of(*row["group"].rsplit("/", 1))),
    "executions": _count("executions", "executions"),
    "longest": _time("longest", "longest_ms"),
    "in_force": _time("in force", "in_force_ms"),
    "recommended": _time("recommended", "timeout_ms"),
    "why": text("why", lambda row: f"{row['verdict']}: {row['why']}"),
    "token": number("token", lambda row: str(row["token"])),
    "holder": text("holder", lambda row: html.code(words.replica(row["holder"]))),
    "began": _instant("from (UTC)", "began_ms"),
    "lasted": number("for", _lasted),
    "end": text("end", _phrase("end")),
    "gap": number("gap after it", _gap),
}
RANKS = "p50 p95 p99 p999 max"


def table(names: str, rows: Sequence[Row], caption: str = "", most: int = 40) -> Markup:
    """Return a table with the columns ``names``, which blanks separate. Empty without rows."""
    return html.table([_COLUMNS[name] for name in names.split()], rows, caption=caption, most=most)
