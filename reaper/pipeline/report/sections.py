"""The sections of the page: what each answers, in a sentence, a chart and a table. Pure."""

from collections.abc import Sequence

from reaper.pipeline.analysis.dead_letters import redrive_command
from reaper.pipeline.report import charts, html, words
from reaper.pipeline.report.findings import Findings, Row
from reaper.pipeline.report.html import (
    Column,
    Markup,
    heading,
    number,
    paragraph,
    section,
    table,
    text,
    tile,
)
from reaper.pipeline.report.live_check import Place

QUANTILES = ("p50", "p95", "p99", "p999", "max")
_HEADINGS = {"p999": "p99.9"}

GROUP = text("group", words.pair)
CAUSE = text("cause", lambda row: str(row["cause"]).replace("_", " "))

CAUSES = {
    "crash": "nothing was heard of the worker again",
    "slow": "the worker lived, and the job ran longer than the visibility timeout",
    "late_settlement": "the work was done in time, and its settlement came too late",
    "early_recovery": "it was recovered before the visibility timeout had passed: a broken promise, please report it",
    "restart": "a later process of the same worker took it over",
    "failed": "the handler failed, and the job was tried again",
    "retried": "the handler asked for another try that does not count",
    "handed_back": "the worker was shut down in the midst of it",
    "redriven": "an operator redrove the dead letter",
    "unexplained": "the journal tells no reason",
}

WANTED = ("failed", "retried", "redriven")
"""Causes of second starts that somebody asked for."""

_LIVE = {
    Place.READY: "ready, waiting for a worker",
    Place.PENDING: "pending in a worker",
    Place.SCHEDULED: "waiting in the schedule",
    Place.DEAD_LETTERED: "dead-lettered",
    Place.SETTLED: "settled since the lake was filled",
    Place.ACKNOWLEDGED: "acknowledged by a worker that journals nothing",
    Place.MISSING: "lost: nowhere in Redis, and no event tells of an end",
    Place.UNCONFIRMED: "unconfirmed: the journal in Redis was trimmed, or there was too much to search",
}


def _ranks(of: str = "") -> list[Column]:
    """Return the columns of quantiles."""

    def column(name: str) -> Column:
        return number(_HEADINGS.get(name, name), lambda row: words.duration(row.get(f"{of}{name}")))

    return [column(name) for name in QUANTILES]


def _n(title: str, name: str) -> Column:
    return number(title, lambda row: words.count(row.get(name)))


JOBS, ENTRIES, CALLS = (_n(name, name) for name in ("jobs", "entries", "calls"))

# ---- at a glance


def glance(findings: Findings) -> Markup:
    """Return the figures that are seen first."""
    early = findings.total("recovery_counts", "early")
    starts = findings.total("second_starts", "starts")
    wanted = sum(findings.total("second_starts", "starts", cause=cause) for cause in WANTED)
    twice = findings.total("duplicates", "jobs")
    worst = max((row["p99"] for row in _overshoots(findings) if row["p99"] is not None), default=None)
    tiles = [
        tile(words.count(findings.total("event_counts", "n", event="acked")), "jobs done"),
        tile(words.count(findings.total("recovery_counts", "recoveries")), "stalled deliveries recovered"),
        tile(words.duration(worst), "worst p99 overshoot of a group"),
        tile(words.count(early), "recovered too early", "bad" if early else "good"),
        tile(words.count(starts - wanted), "second starts after stalls"),
        tile(words.count(twice), "known duplicates", "warn" if twice else "", UNSEEN),
        _lost_tile(findings),
        tile(words.count(findings.total("event_counts", "n", event="dead_lettered")), "dead letters"),
    ]
    return Markup(f'<div class="tiles">{"".join(tiles)}</div>{_doubts(findings)}')


UNSEEN = "Work that a worker did and could not report before it died is not in the journal."
"""Why there may be more duplicates than the journal shows."""

_PUT_ASIDE = {
    "instant": "events that claim to be from before 2018, or later than a day after this report was made",
    "group": "events of groups that do not say of which",
    "duration": "deliveries whose times are negative, or longer than a year",
}


def _doubts(findings: Findings) -> Markup:
    """Return what stands in none of the figures: it is said where they are seen first."""
    unanswered = findings.about["unanswered"]
    told = [
        f"Spark did not answer {', '.join(name.replace('_', ' ') for name in unanswered)}: what rests on it is missing "
        f"({next(iter(unanswered.values()))})."
        if unanswered
        else "",
        _sentence(findings.total("malformed", "entries"), "entries that nobody can read are kept in table malformed",
                  {str(row["reason"]) for row in findings.tables["malformed"]}),
        *(
            _sentence(findings.total("skewed", "events", what=what), f"{meaning} are put aside",
                      {words.namespace(row) for row in findings.tables["skewed"] if row["what"] == what})
            for what, meaning in _PUT_ASIDE.items()
        ),
    ]  # fmt: skip
    return Markup("".join(f'<p class="doubt">{html.shown(sentence)}</p>' for sentence in told if sentence))


def _sentence(count: int, meaning: str, details: set[str]) -> str:
    most = 3
    shown = "; ".join(detail[: html.LONGEST] for detail in sorted(details)[:most]) + (
        "; …" if len(details) > most else ""
    )
    return f"{count:,} {meaning}: {shown}." if count else ""


def _overshoots(findings: Findings) -> list[Row]:
    return [row for row in findings.tables["recovery_times"] if row["measure"] == "overshoot"]


def _lost_tile(findings: Findings) -> Markup:
    unsettled = findings.total("unsettled", "jobs")
    if findings.live is None:
        return tile(words.count(unsettled), "unsettled jobs, unconfirmed", "warn" if unsettled else "good")
    lost = findings.live["places"].get(Place.MISSING, 0)
    return tile(words.count(lost), "jobs lost", "bad" if lost else "good")


# ---- sections


def recovery(findings: Findings) -> Markup:
    """How stalled deliveries came back."""
    counts = findings.tables["recovery_counts"]
    if not counts:
        return section("recovery", "Recovery", [paragraph("Nothing stalled.")])
    curves = findings.tables["recovery_curves"]
    panels = {
        title: [row for row in curves if row["measure"] == measure]
        for title, measure in (("Overshoot", "overshoot"), ("Wait until the second start", "wait"))
    }

    columns = [
        GROUP,
        text("recovered by", lambda row: row["mode"] or words.NOTHING),
        text("outcome", lambda row: str(row["outcome"]).replace("_", " ")),
        text("reason", lambda row: str(row["reason"] or words.NOTHING).replace("_", " ")),
        _n("times", "n"),
        *_ranks(),
    ]
    waits = [row for row in findings.tables["recovery_times"] if row["measure"] == "wait"]
    return section(
        "recovery",
        "Recovery",
        [
            paragraph(
                "Overshoot is how long a delivery lay there after its visibility timeout had passed. The wait is from "
                "the recovery until the job was started again; suspects wait by intention: they run one at a time."
            ),
            charts.distributions("recovery", panels, _recovered_by),
            table(columns, _overshoots(findings), caption="Overshoot"),
            table(columns, waits, caption="Wait until the second start"),
            _early(counts),
        ],
    )


def _recovered_by(row: html.Row) -> str:
    return f"{words.pair(row)} ({words.brief(str(row['mode']))})"


def _early(counts: Sequence[Row]) -> Markup:
    early = [row for row in counts if row["early"]]
    return table(
        [
            GROUP,
            text("recovered by", lambda row: row["mode"]),
            _n("recoveries", "recoveries"),
            _n("too early", "early"),
        ],
        early,
        caption="Recovered before the visibility timeout had passed",
    )


def integrity(findings: Findings) -> Markup:
    """What ran twice, was refused, or is not settled."""
    starts = findings.tables["second_starts"]
    causes = sorted({row["cause"] for row in starts}, key=list(CAUSES).index)
    meanings = [{"cause": cause, "meaning": CAUSES[cause]} for cause in causes]
    done = findings.tables["deliveries_until_done"]
    return section(
        "integrity",
        "Integrity",
        [
            paragraph(
                "A second start is a job that was started again. A duplicate is a job whose work was completed twice: "
                "the first worker's settlement was refused, since somebody else had the job by then."
            ),
            table([GROUP, CAUSE, _n("second starts", "starts"), JOBS], starts, caption="Second starts"),
            table([CAUSE, text("meaning", lambda row: row["meaning"])], meanings),
            table([GROUP, CAUSE, JOBS], findings.tables["duplicates"], caption="Duplicates"),
            *_unsettled(findings),
            table([GROUP, ENTRIES], findings.tables["lost_payloads"], caption="Payloads that were gone"),
            table(
                [GROUP, text("verb", lambda row: row["verb"]), text("of a", lambda row: row["of"]), CALLS, ENTRIES],
                findings.tables["refused_writes"],
                caption="Refused writes: a term or a delivery was over, and its late write changed nothing",
            ),
            table([GROUP, number("delivery", lambda row: str(row["delivery"])), JOBS], done,
                  caption="In which delivery jobs were done"),
        ],
    )  # fmt: skip


def _unsettled(findings: Findings) -> list[Markup]:
    rows = findings.tables["unsettled"]
    if not rows:
        return [heading("Unsettled jobs"), paragraph("None: every job of which the journal tells has come to its end.")]
    last_word = text("last event", lambda row: str(row["event"]).replace("_", " "))
    told = table([GROUP, last_word, JOBS], rows, caption="Jobs without an end, by the last that is known")
    if findings.live is None:
        sentence = (
            "Whether any of them is lost is unconfirmed: they may be ready, pending, scheduled, or settled since by "
            "now. Run the report with --redis-url to look."
        )
        return [heading("Unsettled jobs"), paragraph(sentence), told]
    places = [{"place": place, "jobs": jobs} for place, jobs in findings.live["places"].items()]
    found = table(
        [text("found", lambda row: _LIVE[Place(row["place"])]), JOBS], places,
        caption=f"Where they were in Redis at {findings.live['at']}",
    )  # fmt: skip
    lost = table(
        [GROUP, text("job", lambda row: html.code(row["job"])), last_word,
         text("at (UTC)", lambda row: words.instant(row["at_ms"]))],
        findings.live["lost"], caption="Lost jobs, unless a worker that journals nothing has settled and deleted them",
    )  # fmt: skip
    left = findings.live["not_checked"]
    note = f"{left:,} more were not looked for." if left else ""
    return [heading("Unsettled jobs"), told, found, paragraph(note), lost]


def durations(findings: Findings) -> Markup:
    """How long jobs wait and run."""
    kind = [GROUP, text("type", lambda row: row["type"] or words.NOTHING), _n("jobs", "n"), *_ranks()]
    curves = findings.tables["duration_curves"]
    measures = {"Queue wait": "wait", "Run time": "run"}
    panels = {title: [row for row in curves if row["measure"] == measure] for title, measure in measures.items()}
    rows = findings.tables["durations"]
    return section(
        "durations",
        "Queue wait and run time",
        [
            paragraph(
                "Of acknowledged deliveries: from when an entry could be read until it was, and the handler's time."
            ),
            charts.distributions("durations", panels, words.kind) if curves else Markup(""),
            *(
                table(kind, [row for row in rows if row["measure"] == measure], caption=title)
                for title, measure in measures.items()
            ),
            *_scanned(findings),
        ],
    )


def _scanned(findings: Findings) -> list[Markup]:
    foreign = {words.pair(row) for row in findings.tables["foreign_groups"]}

    def bounds(name: str) -> Column:
        def cell(row: html.Row) -> str:
            below = row[f"{name}_below"]
            upper = f"to {words.duration(below)}" if below is not None else "or more"
            return f"{words.duration(row[f'{name}_at_least'])} {upper}"

        return number(name, cell)

    def whose(row: html.Row) -> str:
        return (
            Markup('<span class="mark">workers journal nothing</span>')
            if words.pair(row) in foreign
            else "some journal"
        )

    rows = findings.tables["scanned_durations"]
    if not rows and not foreign:
        return []
    told = {words.pair(row) for row in rows}
    silent = sorted(foreign - told)
    return [
        heading("What leaders' scans tell of workers that journal nothing"),
        paragraph(
            "Between two full scans a leader sees deliveries disappear. That bounds the time in a worker, waiting and "
            "running there; what was settled faster than leaders look is not seen, so short jobs are underrated."
        ),
        table([GROUP, text("its workers", whose), _n("seen to go", "n"), *map(bounds, ("p50", "p95", "p99"))], rows),
        paragraph(f"Nothing is known of {_listed(silent)}: no worker and no scan tells of it." if silent else ""),
    ]


def _listed(names: Sequence[str], most: int = 40) -> str:
    left = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + left


def timeouts(findings: Findings) -> Markup:
    """Which visibility timeout to set."""
    groups = findings.advice.get("groups", [])
    if not groups:
        return section(
            "timeouts", "Visibility timeouts", [paragraph("No execution was settled: nothing to recommend.")]
        )
    promise = findings.advice["promise"]
    columns = [
        text("group", lambda row: words.pair_of(row["stream"], row["group"])),
        _n("executions", "executions"),
        number("longest", lambda row: words.duration(row["longest_ms"])),
        number("in force", lambda row: words.duration(row["in_force_ms"])),
        number("recommended", lambda row: words.duration(row["timeout_ms"])),
        text("why", lambda row: f"{row['verdict']}: {row['why']}"),
    ]
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
            table(columns, groups),
        ],
    )


def dead_letters(findings: Findings) -> Markup:
    """What the dead letters have in common."""
    clusters = findings.tables["dead_letter_clusters"]
    if not clusters:
        return section("dead_letters", "Dead letters", [paragraph("None are in the lake.")])
    return section(
        "dead_letters",
        "Dead letters",
        [
            paragraph(
                "Clustered by what their errors have in common, numbers, names and paths masked. The command gives a "
                "whole cluster back to its stream; add --dry-run to see first."
            ),
            *map(_cluster, clusters[:MOST_CLUSTERS]),
            paragraph(_more(len(clusters) - MOST_CLUSTERS, "clusters")),
        ],
    )


MOST_CLUSTERS = 25
_LONGEST_ERROR, _LONGEST_FACTS, _LONGEST_COMMAND = 400, 1_000, 2_000


def _cluster(row: Row) -> Markup:
    where = words.pair_of(row["source_stream"], row["group"])
    title = f"{row['n']:,} of {where}: {row['pattern'] or row['reason'] or 'no error told'}"
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


def _more(number: int, what: str) -> str:
    return f"{number:,} more {what} are in the JSON file." if number > 0 else ""


def stalls(findings: Findings) -> Markup:
    """Where deliveries stall, and when."""
    by_worker = findings.tables["stalls_by_worker"]
    stalled = [row for row in by_worker if row["stalls"]]
    course = findings.tables["stalls_over_time"]
    period_ms = findings.about["period_ms"]
    columns = [
        GROUP,
        text("worker", lambda row: html.code(row["worker"])),
        _n("processes", "processes"),
        _n("deliveries", "deliveries"),
        _n("stalled", "stalls"),
        number("share", lambda row: words.share(row["permille"])),
    ]
    return section(
        "stalls",
        "Stalls",
        [
            paragraph(
                "A worker is a consumer without its process's nonce, by default a host. One that journals nothing is "
                f"only seen where it stalls. Each point of the chart is {words.duration(period_ms)}."
            ),
            charts.courses("stalls", course, period_ms) if course else Markup(""),
            table(columns, stalled, caption="Workers with stalled deliveries", most=40)
            or paragraph(f"None of {len(by_worker):,} workers had a stalled delivery."),
        ],
    )


def leadership(findings: Findings) -> Markup:
    """Who led when."""
    terms = findings.tables["terms"]
    if not terms:
        return section("leadership", "Leadership", [paragraph("No elections are on record.")])
    gaps = [row["gap_ms"] for row in terms if row["gap_ms"] is not None]
    silent = [row for row in terms if row["gap_at_most_ms"] is not None]
    summary = f"{len(terms):,} terms. "
    if gaps:
        summary += f"Between the end of a term and the next one lay at most {words.duration(max(gaps))}. "
    if silent:
        longest = words.duration(max(row["gap_at_most_ms"] for row in silent))
        summary += (
            f"{len(silent):,} leaders told nothing of their end, or told it late; between the moment when they were "
            f"last seen to lead and the next term lay at most {longest}."
        )
    columns = [
        text("namespace", words.namespace),
        number("token", lambda row: str(row["token"])),
        text("leader", lambda row: html.code(words.replica(row["holder"]))),
        text("from (UTC)", lambda row: words.instant(row["began_ms"])),
        number(
            "for", lambda row: words.duration(row["ended_ms"] - row["began_ms"]) if row["ended_ms"] else words.NOTHING
        ),
        text("end", lambda row: row["end"]),
        text("why", lambda row: str(row["reason"] or words.NOTHING).replace("_", " ")),
        number("gap after it", _gap),
    ]
    latest = terms[-200:]
    return section(
        "leadership",
        "Leadership",
        [
            paragraph(summary),
            table(columns, list(reversed(latest)), caption="Terms, the newest first", most=40),
        ],
    )


def _gap(row: html.Row) -> str:
    if row["gap_ms"] is not None:
        return words.duration(row["gap_ms"])
    return f"≤ {words.duration(row['gap_at_most_ms'])}" if row["gap_at_most_ms"] is not None else words.NOTHING


def about(findings: Findings) -> Markup:
    """What the report was made of."""
    journals = [
        text("journal", lambda row: html.code(row["stream"])),
        _n("events", "events"),
        text("from (UTC)", lambda row: words.instant(row["first_ms"])),
        text("until (UTC)", lambda row: words.instant(row["last_ms"])),
    ]
    malformed = [
        text("stream", lambda row: html.code(row["stream"])),
        text("reason", lambda row: row["reason"]),
        _n("entries", "entries"),
    ]
    events = [GROUP, text("event", lambda row: row["event"]), _n("times", "n")]
    return section(
        "about",
        "What this report is made of",
        [
            paragraph(
                "Times are those of the Redis server; quantiles are exact, by nearest rank, in whole milliseconds."
            ),
            table(journals, findings.tables["extents"]),
            table(events, findings.tables["event_counts"], caption="Events"),
            table(
                malformed, findings.tables["malformed"], caption="Entries that nobody can read, kept in table malformed"
            ),
        ],
    )
