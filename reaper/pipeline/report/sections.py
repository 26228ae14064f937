"""The sections about totals, next steps, recovery, the course over time, and terms. Pure."""

from collections.abc import Sequence

from reaper.pipeline.analysis.answers import Row, Rows
from reaper.pipeline.report import charts, html, words
from reaper.pipeline.report.columns import RANKS, table
from reaper.pipeline.report.findings import Findings
from reaper.pipeline.report.html import Markup, paragraph, section, tile
from reaper.pipeline.report.live import LOST
from reaper.pipeline.report.next_steps import next_steps

WANTED = ("failed", "retried", "redriven")
"""Causes of second starts that a person or a handler wanted."""
UNSEEN = "Work that a worker did and could not report before it died is not in the journal."
"""Why there may be more duplicates than the journal shows."""
_PUT_ASIDE = {
    "instant": "events with a time before 2018, or more than a day after this report",
    "group": "events of a group that do not name it",
    "duration": "deliveries whose times are negative, or longer than a year",
}
_WORST = 5
"""Periods and groups that a list of the worst names."""

# ---- at a glance


def glance(findings: Findings) -> Markup:
    """Return the figures that are seen first."""
    early = findings.total("recovery_counts", "early")
    starts = findings.total("second_starts", "starts")
    wanted = sum(findings.total("second_starts", "starts", cause=cause) for cause in WANTED)
    twice = findings.total("duplicates", "jobs")
    again = max((row["p99"] for row in findings.tables["restarts"]), default=None)
    tiles = [
        tile(words.count(findings.total("event_counts", "n", event="acked")), "jobs done"),
        tile(words.count(findings.total("recovery_counts", "recoveries")), "stalled deliveries recovered"),
        tile(words.duration(again), "from crash to second start, worst p99 of a group"),
        tile(words.count(early), "recovered too early", "bad" if early else "good"),
        tile(words.count(starts - wanted), "second starts after stalls"),
        tile(words.count(twice), "known duplicates", "warn" if twice else "", UNSEEN),
        _lost_tile(findings),
        tile(words.count(findings.total("event_counts", "n", event="dead_lettered")), "dead letters"),
    ]
    return Markup(f'<div class="tiles">{"".join(tiles)}</div>{_doubts(findings)}')


def _lost_tile(findings: Findings) -> Markup:
    unsettled = findings.total("unsettled", "jobs")
    if findings.live is None:
        return tile(words.count(unsettled), "unsettled jobs, unconfirmed", "warn" if unsettled else "good")
    lost = findings.live["places"].get(LOST, 0)
    return tile(words.count(lost), "jobs lost", "bad" if lost else "good")


def _doubts(findings: Findings) -> Markup:
    """Return the input that no figure contains, for the top of the page."""
    told = [
        _sentence(findings.total("malformed", "entries"), "malformed entries are in the table malformed",
                  {str(row["reason"]) for row in findings.tables["malformed"]}),
        *(
            _sentence(findings.total("skewed", "events", what=what), f"{meaning} are left out",
                      {words.namespace(row) for row in findings.tables["skewed"] if row["what"] == what})
            for what, meaning in _PUT_ASIDE.items()
        ),
    ]  # fmt: skip
    return Markup("".join(f'<p class="doubt">{html.shown(sentence)}</p>' for sentence in told if sentence))


def _sentence(count: int, meaning: str, details: set[str]) -> str:
    most = 3
    shown = "; ".join(detail[: html.LONGEST] for detail in sorted(details)[:most])
    return f"{count:,} {meaning}: {shown}{'; …' if len(details) > most else ''}." if count else ""


def steps(findings: Findings) -> Markup:
    """Return the next steps, with a command for each finding."""
    found = next_steps(findings)
    parts = [part for step in found for part in (paragraph(step.finding), html.block(step.command))]
    return section("steps", "Next steps", parts or [paragraph("None: no finding of this report needs a command.")])


# ---- how stalled jobs came back


def recovery(findings: Findings) -> Markup:
    """Return the times of recoveries, by group and cause."""
    counts, times = findings.tables["recovery_counts"], findings.tables["recovery_times"]
    if not counts:
        return section("recovery", "Recovery", [paragraph("Nothing stalled.")])
    sums = findings.tables["recovery_sums"]
    panels = {
        "From crash to second start": findings.tables["restarts"],
        "Overshoot": _of(sums, "overshoot"),
        "Wait until the second start": _of(sums, "wait"),
    }
    columns = f"group mode outcome reason times {RANKS}"
    return section(
        "recovery",
        "Recovery",
        [
            paragraph(
                "From crash to second start is the time from the last sign of life of a crashed worker until its job "
                "ran again. It is the sum of the visibility timeout, the overshoot and the wait. The overshoot is the "
                "time from the visibility timeout to the recovery. The wait is the time from the recovery to the "
                "second start. Quarantined jobs wait longer, because they run one at a time."
            ),
            charts.distributions("recovery", panels, words.group),
            table(f"group visibility times {RANKS}", findings.tables["restarts"], "From crash to second start"),
            table(columns, _of(times, "overshoot"), "Overshoot"),
            table(columns, _of(times, "wait"), "Wait until the second start"),
            table("group mode recoveries early", [row for row in counts if row["early"]],
                  "Recovered before the visibility timeout had passed"),
        ],
    )  # fmt: skip


def _of(rows: Sequence[Row], measure: str) -> Rows:
    return [row for row in rows if row["measure"] == measure]


# ---- over time


def over_time(findings: Findings) -> Markup:
    """Return throughput, waits and recoveries over time, and the workers in which deliveries stalled."""
    course, period_ms = findings.tables["over_time"], findings.about["period_ms"]
    by_worker = findings.tables["stalls_by_worker"]
    worst = {
        "The periods with the most stalled deliveries": _worst(course, "stalls"),
        "The periods with the longest queue waits": _worst(course, "longest_wait_ms"),
    }
    return section(
        "over_time",
        "Stalls and waits over time",
        [
            paragraph(f"Each point of a chart is {words.duration(period_ms)}."),
            charts.courses("over_time", course, period_ms) if course else Markup(""),
            *(table("group period done stalled share longest_wait", rows, title) for title, rows in worst.items()),
            paragraph(
                "A worker is a consumer without the random ID of its process, by default a host. A worker that "
                "journals nothing is only seen when a delivery stalls in it."
            ),
            table("group worker processes deliveries stalled share", [row for row in by_worker if row["stalls"]],
                  "Workers with stalled deliveries")
            or paragraph(f"None of {len(by_worker):,} workers had a stalled delivery."),
        ],
    )  # fmt: skip


def _worst(course: Sequence[Row], name: str) -> Rows:
    """Return the periods in which a value was the largest."""
    return sorted((row for row in course if row[name]), key=lambda row: (-row[name], row["period"]))[:_WORST]


# ---- which replica held the leases


def terms(findings: Findings) -> Markup:
    """Return the terms of the holders of each group's lease."""
    found = sorted(findings.tables["terms"], key=lambda row: row["began_ms"] or 0, reverse=True)
    if not found:
        return section("terms", "Terms of each group", [paragraph("No replica took or left a lease.")])
    gaps = [row["gap_ms"] for row in found if row["gap_ms"] is not None]
    expired = [row["gap_at_most_ms"] for row in found if row["gap_at_most_ms"] is not None]
    summary = f"{len(found):,} terms. "
    if gaps:
        summary += f"The longest time without a holder, after a lease that was left, is {words.duration(max(gaps))}. "
    if expired:
        summary += (
            f"{len(expired):,} leases expired, as that of a killed replica does. The next term began at most "
            f"{words.duration(max(expired))} after the holder's last write."
        )
    columns = "group token holder began lasted end gap"
    return section(
        "terms", "Terms of each group", [paragraph(summary), table(columns, found, "Terms, the newest first")]
    )
