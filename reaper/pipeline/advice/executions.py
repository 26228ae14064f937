"""Reads from the answers of a lake how long executions were held, and how many outlasted the timeout. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from reaper.pipeline.advice.timeouts import Durations, GroupRecord, Workers

Row = Mapping[str, Any]


def records_of(rows: Iterable[Row], workers: Workers | None = None) -> list[GroupRecord]:
    """Return the record of each group, from the rows of the question ``executions``, ordered by name.

    ``workers`` is how the workers of all groups keep their executions. By default, they extend them if the group has
    consumers, and all of these are workers of stream-reaper.
    """
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["stream"], row["group"]].append(row)
    records = (_record(*key, found, workers) for key, found in sorted(groups.items()))
    return [record for record in records if record.executions]


def _record(stream: str, group: str, rows: list[Row], workers: Workers | None) -> GroupRecord:
    counts: Counter[str] = Counter()
    by_kind: dict[str, Durations] = defaultdict(Counter)
    by_type: dict[str, Durations] = defaultdict(Counter)
    for row in rows:
        counts[row["kind"]] += row["n"]
        by_kind[row["kind"]][max(1, row["ms"])] += row["n"]
        if row["kind"] == "execution":
            by_type[row["type"]][max(1, row["ms"])] += row["n"]
    ours = bool(counts["execution"] or counts["stall"]) and not any(row["strangers"] for row in rows)
    workers = workers or (Workers.EXTENDING if ours else Workers.PLAIN)
    cut_off = counts["late"] if workers is Workers.EXTENDING else counts["twice"]
    durations = Counter(by_kind["execution"])
    if workers is Workers.PLAIN and cut_off:
        durations[math.inf] = cut_off
    in_force = max((row for row in rows if row["kind"] == "in_force"), key=lambda row: row["last_ms"], default=None)
    return GroupRecord(
        stream=stream,
        group=group,
        workers=workers,
        durations=durations,
        by_type=dict(sorted(by_type.items())),
        cut_off=cut_off,
        in_force_ms=in_force["ms"] if in_force else None,
    )
