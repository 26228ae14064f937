"""The sections about integrity, durations, visibility timeouts, dead letters, and the input. Pure."""

from reaper.operations.job_search import Place
from reaper.pipeline.analysis.answers import Row, Rows
from reaper.pipeline.report import charts, html, words
from reaper.pipeline.report.columns import RANKS, table
from reaper.pipeline.report.findings import Findings
from reaper.pipeline.report.html import Markup, heading, number, paragraph, section, text
from reaper.pipeline.report.live import LOST, UNCONFIRMED
from reaper.pipeline.report.next_steps import redrive_command

NAMED = 50
"""Jobs that a list names."""
MOST_CLUSTERS = 25
_LONGEST_ERROR, _LONGEST_FACTS, _LONGEST_COMMAND = 400, 1_000, 2_000

CAUSES = {
    "crash": "the worker showed no sign of life again",
    "slow": "the worker lived, and the job ran longer than the visibility timeout",
    "late_settlement": "the job was done in time, and its settlement arrived too late",
    "early_recovery": "it was recovered before the visibility timeout had passed: a broken promise, please report it",
    "failed": "the handler failed, and the job was tried again",
    "retried": "the handler asked for another try that does not count",
    "handed_back": "the worker was shut down while it ran",
    "redriven": "an operator redrove the dead letter",
    "unexplained": "the journal has no reason",
}
_PLACES = {
    Place.READY: "ready, waiting for a worker",
    Place.PENDING: "pending in a worker",
    Place.SCHEDULED: "waiting in the schedule",
    Place.QUARANTINED: "quarantined, until it can run alone",
    Place.DEAD: "dead-lettered",
    Place.SETTLED: "settled since the lake was filled",
    LOST: "lost: not in Redis, and without a last event",
    UNCONFIRMED: "unconfirmed: the journal in Redis was trimmed, or there was too much to search",
}


def integrity(findings: Findings) -> Markup:
    """Return second starts, duplicates, unsettled jobs and late writes."""
    tables = findings.tables
    causes = sorted({row["cause"] for row in tables["second_starts"]}, key=list(CAUSES).index)
    return section(
        "integrity",
        "Integrity",
        [
            paragraph(
                "A second start is a job that was started again. A duplicate is a job whose work was completed twice: "
                "the settlement of the first worker was rejected, because another worker had the job by then."
            ),
            table("group cause starts jobs", tables["second_starts"], "Second starts"),
            table("cause meaning", [{"cause": cause, "meaning": CAUSES[cause]} for cause in causes]),
            table("group cause jobs ids", _named(tables["duplicate_jobs"], "cause"), "Duplicates"),
            *_unsettled(findings),
            table("group entries", tables["lost_payloads"], "Deleted payloads"),
            table("group event verb calls", tables["late_writes"],
                  "Late writes: a term or a delivery was over, and its write changed nothing"),
            table("group delivery jobs", tables["deliveries_until_done"], "In which delivery jobs were done"),
        ],
    )  # fmt: skip


def _unsettled(findings: Findings) -> list[Markup]:
    rows, live = findings.tables["unsettled_jobs"], findings.live
    if not rows:
        return [heading("Unsettled jobs"), paragraph("None: every job in the journal has come to its end.")]
    named = "group last_event jobs ids"
    unsettled = table(named, _named(rows, "event"), "Jobs without an end, by their last event")
    if live is None:
        sentence = (
            "Whether any of them is lost is unconfirmed. They may be ready, pending, scheduled, or settled since. Run "
            "the report with --redis-url to look for them."
        )
        return [heading("Unsettled jobs"), paragraph(sentence), unsettled]
    places = [{"place": _PLACES[place], "jobs": jobs} for place, jobs in live["places"].items()]
    found = [text("found", lambda row: row["place"]), number("jobs", lambda row: words.count(row["jobs"]))]
    left = f"{live['not_checked']:,} more were not looked for." if live["not_checked"] else ""
    return [
        heading("Unsettled jobs"),
        unsettled,
        html.table(found, places, caption=f"Where they were in Redis at {live['at']}"),
        paragraph(left),
        table(named, _named(live["lost"], "event", of_all=False),
              "Lost jobs, unless a worker without a journal settled and deleted them"),
    ]  # fmt: skip


def _named(rows: Rows, column: str, *, of_all: bool = True) -> Rows:
    """Return one row for each group and value of a column, with the IDs of its first jobs, `NAMED` in all.

    ``jobs`` is the number of all jobs, which is ``n`` in ``rows``. Without ``of_all``, ``rows`` has them all.
    """
    heads: dict[tuple[str, ...], Row] = {}
    for row in rows:
        common = {name: row[name] for name in ("stream", "group", column)}
        heads.setdefault(tuple(common.values()), common | {"ids": [], "n": row["n"]})["ids"].append(row["job"])
    most = max(1, NAMED // max(1, len(heads)))
    counted = [(head, head["n"] if of_all else len(head["ids"])) for head in heads.values()]
    return [head | {"ids": head["ids"][:most], "jobs": n, "left": max(0, n - most)} for head, n in counted]


def durations(findings: Findings) -> Markup:
    """Return queue waits and run times."""
    rows = findings.tables["durations"]
    panels = {
        title: [row for row in rows if row["measure"] == measure]
        for title, measure in (("Queue wait", "wait"), ("Run time", "run"))
    }
    return section(
        "durations",
        "Queue wait and run time",
        [
            paragraph(
                "Of acknowledged deliveries. The queue wait is the time from when this delivery could be read until a "
                "worker read it. The run time is the time of the handler."
            ),
            charts.distributions("durations", panels, words.kind) if rows else Markup(""),
            *(table(f"group of_type acknowledged {RANKS}", part, title) for title, part in panels.items()),
        ],
    )


# ---- visibility timeouts


def timeouts(findings: Findings) -> Markup:
    """Return the recommended visibility timeouts."""
    groups = findings.advice.get("groups", [])
    if not groups:
        return section(
            "timeouts", "Visibility timeouts", [paragraph("No execution was settled: nothing to recommend.")]
        )
    promise = findings.advice["promise"]
    return section(
        "timeouts",
        "Visibility timeouts",
        [
            paragraph(
                f"A worker that extends its executions keeps them through a pause of "
                f"{words.duration(promise['pause_ms'])}. Of other workers, at most 1 execution in "
                f"{promise['one_in']:,} outlasts the timeout, as long as the next jobs are like those in the lake. Set "
                "visibility_timeout in the settings of the reaper, or of the workers if they recover by themselves."
            ),
            table("advised_group executions longest in_force recommended why", groups),
        ],
    )


# ---- dead letters


def dead_letters(findings: Findings) -> Markup:
    """Return the clusters of dead letters."""
    clusters = findings.tables["dead_letter_clusters"]
    if not clusters:
        return section("dead_letters", "Dead letters", [paragraph("None are in the lake.")])
    left = len(clusters) - MOST_CLUSTERS
    return section(
        "dead_letters",
        "Dead letters",
        [
            paragraph(
                "Clustered by what their errors have in common; numbers, names and paths are masked. The command gives "
                "a whole cluster back to its stream. Add --dry-run to see it first."
            ),
            *map(_cluster, clusters[:MOST_CLUSTERS]),
            paragraph(f"{left:,} more clusters are in the JSON file." if left > 0 else ""),
        ],
    )


def _cluster(row: Row) -> Markup:
    where = words.group_of(row["source_stream"], row["group"])
    title = f"{row['n']:,} of {where}: {row['pattern'] or row['reason'] or 'no error'}"
    given_back = f", {row['redriven']:,} of them redriven since" if row["redriven"] else ""
    reason = str(row["reason"] or "no reason").replace("_", " ")
    frame = f", in {row['frame']}" if row["frame"] else ""
    facts = (
        f"{reason}{frame}{given_back}; {words.instant(row['first_ms'])} to {words.instant(row['last_ms'])} UTC. "
        f"The newest, job {row['job']}: {(row['error'] or 'no error')[:_LONGEST_ERROR]}"
    )
    command = redrive_command(row)
    redrive = html.block(command) if len(command) <= _LONGEST_COMMAND else paragraph("Its names are too long to show.")
    return Markup(f"{heading(title[:_LONGEST_ERROR])}{paragraph(facts[:_LONGEST_FACTS])}{redrive}")


# ---- about


def about(findings: Findings) -> Markup:
    """Return the size of the input."""
    tables = findings.tables
    return section(
        "about",
        "Sources of this report",
        [
            paragraph("Times are those of the Redis server. Quantiles are exact, by nearest rank, in milliseconds."),
            table("journal events first last", tables["extents"]),
            table("group event times", tables["event_counts"], "Events"),
            table("journal reason entries", tables["malformed"], "Malformed entries"),
        ],
    )
