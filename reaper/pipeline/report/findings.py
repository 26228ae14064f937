"""Turns the answers of a lake into the tables of a report, as plain rows. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reaper.pipeline.analysis.answers import SHARES, Answers, LakeAnswers, Row, Rows
from workers.protocol.events import EventName

VERSION = 3
"""Of the JSON."""
RANKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""Columns of a table for some of the quantiles."""
_GROUP = ("stream", "group")
_RECOVERY = (*_GROUP, "mode", "outcome", "reason")


@dataclass(slots=True)
class Findings:
    """The content of a report."""

    about: dict[str, Any]
    """Lake, scope, and when the report was made."""
    tables: dict[str, Rows]
    live: dict[str, Any] | None = None
    """The places of unsettled jobs in Redis. None if Redis was not searched."""
    advice: dict[str, Any] = field(default_factory=dict)
    """The recommended visibility timeouts, as `advice.words.as_json` writes them."""

    def total(self, table: str, column: str, **only: object) -> int:
        """Add up a column of the rows that have the values ``only``."""
        rows = (row for row in self.tables[table] if all(row[key] == value for key, value in only.items()))
        return sum(row[column] for row in rows)

    def as_json(self) -> dict[str, Any]:
        """Return everything for a JSON file."""
        return {"version": VERSION, **self.about, "tables": self.tables, "live": self.live, "advice": self.advice}


def find(asked: LakeAnswers, about: Mapping[str, Any]) -> Findings:
    """Return the tables of a report. ``about`` describes the source of the answers."""
    reach = {name: getattr(asked, name) for name in ("first_ms", "last_ms", "events", "period_ms")}
    return Findings({**about, **reach}, tables_of(asked.answers))


def tables_of(answers: Answers) -> dict[str, Rows]:
    """Return the tables by name. The rows of each are in a stable order."""
    counts = answers["activity_counts"]
    of_groups = [row for row in counts if row["group"] is not None]
    event_counts = _sums(of_groups, (*_GROUP, "event"), n="n")
    acked = [row | {"delivery": row["done_in"]} for row in _of(of_groups, EventName.ACKED)]
    late = _of(of_groups, EventName.REJECTED) + _of(of_groups, EventName.FENCED)
    recovered = [row for row in answers["recoveries"] if row["measure"] == "wait" and not row["is_sum"]]
    times = [_with_ranks(row) for row in answers["recoveries"] if row["measure"] != "skewed" and row["n"]]
    rank = ("n", "quantiles", *RANKS, "max")
    return {
        "extents": _extents(counts),
        "event_counts": event_counts,
        "deliveries_until_done": _sums(acked, (*_GROUP, "delivery"), jobs="n"),
        "lost_payloads": _sums(_of(of_groups, EventName.LOST_PAYLOAD), _GROUP, entries="n"),
        "late_writes": _sums(late, (*_GROUP, "event", "verb"), calls="n"),
        "skewed": _skewed(answers),
        "stalls_by_worker": answers["stalls_by_worker"],
        "over_time": _ordered(answers["over_time"], *_GROUP, "period"),
        "durations": _ordered(
            [_with_ranks(row) for row in answers["durations"] if row["measure"] != "skewed"],
            *_GROUP, "type", "measure"),
        "recovery_counts": _ordered([_only(row, *_RECOVERY, "recoveries", "early") for row in recovered], *_RECOVERY),
        "recovery_times": _ordered(
            [_only(row, *_RECOVERY, "measure", *rank) for row in times if not row["is_sum"]], *_RECOVERY, "measure"),
        "recovery_sums": _ordered(
            [_only(row, *_GROUP, "measure", *rank) for row in times if row["is_sum"]], *_GROUP, "measure"),
        "restarts": _ordered([_with_ranks(row) for row in answers["restarts"]], *_GROUP),
        "second_starts": _ordered(answers["second_starts"], *_GROUP, "cause"),
        "duplicates": _heads(answers["duplicate_jobs"], "cause"),
        "duplicate_jobs": _ordered(answers["duplicate_jobs"], *_GROUP, "job", "generation"),
        "unsettled": _heads(answers["unsettled_jobs"], "event"),
        "unsettled_jobs": _ordered(answers["unsettled_jobs"], "at_ms", *_GROUP, "job"),
        "terms": _ordered(answers["terms"], *_GROUP, "began_ms"),
        "dead_letter_clusters": answers["dead_letter_clusters"],
        "executions": _ordered(answers["executions"], *_GROUP, "type", "kind", "bin"),
        "malformed": _ordered(answers["malformed"], "stream", "reason"),
    }  # fmt: skip


# ---- tables


def _extents(counts: Rows) -> Rows:
    journals: dict[str, Row] = {}
    for row in counts:
        known = journals.setdefault(row["stream"], {"events": 0, "first_ms": row["first_ms"], "last_ms": 0})
        known["events"] += row["n"]
        known["first_ms"] = min(known["first_ms"], row["first_ms"])
        known["last_ms"] = max(known["last_ms"], row["last_ms"])
    return [{"stream": stream, **journals[stream]} for stream in sorted(journals)]


def _skewed(answers: Answers) -> Rows:
    """Count by journal the events that no figure contains, because a clock was wrong or a group is missing."""
    groupless = [
        row for row in answers["activity_counts"]
        if row["group"] is None and row["event"] in set(EventName) and row["event"] != EventName.FAULT_INJECTED
    ]  # fmt: skip
    durations = [row for row in answers["durations"] if row["measure"] == "skewed"]
    durations += [row for row in answers["recoveries"] if row["measure"] == "skewed" and not row["is_sum"] and row["n"]]
    found = {
        "instant": _sums(answers["misdated"], ("stream",), events="events"),
        "group": _sums(groupless, ("stream",), events="n"),
        "duration": _sums(durations, ("stream",), events="n"),
    }
    return [row | {"what": what} for what, rows in found.items() for row in rows]


# ---- rows


def _of(rows: Rows, event: EventName) -> Rows:
    return [row for row in rows if row["event"] == event]


def _only(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def _ordered(rows: Rows, *names: str) -> Rows:
    """Return rows in order, nulls first."""
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in names])


def _sums(rows: Rows, keys: Sequence[str], **sums: str) -> Rows:
    """Add up columns by ``keys``. ``sums`` has the source column of each sum."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        known = found.setdefault(tuple(row[key] for key in keys), dict.fromkeys(sums, 0))
        for name, column in sums.items():
            known[name] += row[column]
    return _ordered([{**dict(zip(keys, key, strict=True)), **known} for key, known in found.items()], *keys)


def _with_ranks(row: Row) -> Row:
    """Add the quantiles that tables show."""
    quantiles = [int(ms) for ms in row["quantiles"]]
    return {**row, "quantiles": quantiles, **{name: quantiles[SHARES.index(share)] for name, share in RANKS.items()}}


def _heads(rows: Rows, column: str) -> Rows:
    """Return how many jobs there are of each group and ``column``, of a list that names the first ones of each."""
    counted = {(row["stream"], row["group"], row[column]): row["n"] for row in rows}
    return [
        {"stream": stream, "group": group, column: value, "jobs": jobs}
        for (stream, group, value), jobs in sorted(counted.items())
    ]
