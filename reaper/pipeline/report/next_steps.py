"""Writes one next step for each finding, with a command that shows more or repairs it. Pure."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reaper.pipeline.analysis.answers import Row, Rows
from reaper.pipeline.report import words
from reaper.pipeline.report.findings import Findings
from workers.protocol import messages
from workers.protocol.keys import stream_of_journal

LONGEST_COMMAND = 2_000
"""Characters of a command. A longer one is not shown."""


@dataclass(frozen=True, slots=True)
class Step:
    """A finding in a sentence, and a command."""

    finding: str
    command: str


def next_steps(findings: Findings) -> list[Step]:
    """Return the steps, the most urgent first. Commands read the address of Redis from the settings."""
    return [step for rule in _RULES for step in rule(findings) if len(step.command) <= LONGEST_COMMAND]


def redrive_command(cluster: Mapping[str, Any], *options: str) -> str:
    """Return the command that redrives all dead letters that have the reason of a cluster."""
    selection = ["--reason", cluster["reason"]] if cluster["reason"] else ["--all"]
    return _command("dead-letters", "redrive", f"{cluster['source_stream']}/{cluster['group']}", *selection, *options)


# ---- rules


def _lost(findings: Findings) -> Iterator[Step]:
    live = findings.live
    if live is None:
        if jobs := findings.total("unsettled", "jobs"):
            finding = f"{counted(jobs, 'job')} had no end when the lake was filled. Look for them in Redis."
            yield Step(finding, _report(findings, "--redis-url", "redis://127.0.0.1:6379/0"))
    elif live["lost"]:
        finding = f"{counted(len(live['lost']), 'job')} disappeared. Search Redis for the first one."
        yield Step(finding, _explain(live["lost"][0]))


def _early(findings: Findings) -> Iterator[Step]:
    if early := findings.total("recovery_counts", "early"):
        finding = f"{counted(early, 'recovery')} came before the visibility timeout. Check settings and clocks."
        yield Step(finding, _command("doctor"))


def _duplicates(findings: Findings) -> Iterator[Step]:
    if row := _most(findings.tables["duplicates"], "jobs", cause="unexplained"):
        job = next(job for job in findings.tables["duplicate_jobs"] if job["cause"] == "unexplained")
        finding = f"{counted(row['jobs'], 'job')} of {words.group(row)} ended twice for no known reason. See the first."
        yield Step(finding, _explain(job))
    if row := _most(findings.tables["second_starts"], "jobs", cause="slow"):
        finding = (
            f"{counted(row['jobs'], 'job')} of {words.group(row)} ran longer than the visibility timeout, and started "
            "again. Raise the timeout."
        )
        yield Step(finding, _advise(findings, row))
    if row := _most(findings.tables["second_starts"], "jobs", cause="late_settlement"):
        finding = (
            f"{counted(row['jobs'], 'job')} of {words.group(row)} ended in time, but their workers did not reach "
            "Redis in time. Check the network between them."
        )
        yield Step(finding, _command("doctor"))


def _crashes(findings: Findings) -> Iterator[Step]:
    if row := _most(findings.tables["second_starts"], "starts", cause="crash"):
        workers = [one for one in findings.tables["stalls_by_worker"] if _names(one) == _names(row) and one["stalls"]]
        worst = (
            f". Most stalled in worker {words.brief(workers[0]['worker'])} ({workers[0]['stalls']:,})"
            if workers
            else ""
        )
        deliveries = counted(row["starts"], "delivery")
        finding = f"{deliveries} of {words.group(row)} stalled because a worker crashed{worst}. Find out why."
        yield Step(finding, _command("status", "--group", f"{stream_of_journal(row['stream'])}/{row['group']}"))


def _dead(findings: Findings) -> Iterator[Step]:
    for cluster in findings.tables["dead_letter_clusters"][:1]:
        error = cluster["pattern"] or cluster["reason"] or "no error"
        finding = (
            f"{counted(cluster['n'], 'dead letter')} of {words.group_of(cluster['source_stream'], cluster['group'])} "
            f"had the same error: {words.brief(error)}. Fix it. Then redrive these jobs, without --dry-run."
        )
        yield Step(finding, redrive_command(cluster, "--dry-run"))


def _gone(findings: Findings) -> Iterator[Step]:
    if entries := findings.total("lost_payloads", "entries"):
        finding = f"{counted(entries, 'entry')} disappeared while a job was pending. Find the program that trims."
        yield Step(finding, _command("doctor"))


def _clocks(findings: Findings) -> Iterator[Step]:
    if events := findings.total("skewed", "events"):
        finding = f"{counted(events, 'event')} counted nowhere, mostly because a clock was wrong. Check the clocks."
        yield Step(finding, _command("doctor"))


def _expired(findings: Findings) -> Iterator[Step]:
    if expired := sum(row["end"] == "expired" for row in findings.tables["terms"]):
        finding = f"{counted(expired, 'lease')} expired: the replica died, or was paused or cut off. Read its log."
        yield Step(finding, _command("status"))


_RULES: tuple[Callable[[Findings], Iterator[Step]], ...] = (
    _lost, _early, _duplicates, _crashes, _dead, _gone, _clocks, _expired,
)  # fmt: skip

# ---- commands


def _command(*arguments: str) -> str:
    return shlex.join(["reaper", *arguments])


def _report(findings: Findings, *options: str) -> str:
    return _command("pipeline", "report", "--lake", str(findings.about["lake"]), *options)


def _advise(findings: Findings, row: Row) -> str:
    group = f"{stream_of_journal(row['stream'])}/{row['group']}"
    return _command("pipeline", "advise", "--lake", str(findings.about["lake"]), "--group", group)


def _explain(row: Row) -> str:
    return _command("explain", row["job"], "--group", f"{stream_of_journal(row['stream'])}/{row['group']}")


# ---- rows


def counted(number: int, one: str) -> str:
    """Return a number of things in words, with separators."""
    return messages.counted(number, one).replace(str(number), words.count(number))


def _names(row: Row) -> tuple[str, str]:
    return row["stream"], row["group"]


def _most(rows: Rows, name: str, **only: str) -> Row | None:
    """Return the row with the largest count, of those that have the values ``only``."""
    found = [row for row in rows if all(row[key] == value for key, value in only.items())]
    return max(found, key=lambda row: int(row[name]), default=None)
