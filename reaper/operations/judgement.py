"""Decides from a snapshot whether the service is healthy, and returns the reasons if not. Pure.

`reaper.operations.snapshot` gathers the facts from Redis. Times are milliseconds of the server's clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from reaper.operations.durations import duration
from reaper.operations.state import Count, GroupState, Snapshot, SourceState
from reaper.reasons import ProblemKind, kinds_of, may_be_late_ms
from reaper.replicas import SCANNED, GroupReport
from reaper.settings import is_observers
from workers.protocol.calls.declined import UNSUPPORTED_LAYOUTS
from workers.protocol.messages import counted, on_one_line

RECENT_MS = 3_600_000
"""How long the service is degraded after a pending entry, or the group, was found deleted."""

MOST_NAMED = 3
"""Groups that a line about many groups names."""
DISABLED_BECAUSE = UNSUPPORTED_LAYOUTS | {
    "no_group": "the stream or its group does not exist. Start a worker, or run `reaper groups create`",
}

Problem = tuple[ProblemKind, str]
"""A problem with its text."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing, and no problem."""
    WARNING = "warning"
    """A risk to remove or to accept. It causes no failure now."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    check: str
    text: str
    group: str = ""
    """The group, or empty if the finding concerns all."""


ok = partial(Finding, Level.OK)
note = partial(Finding, Level.NOTE)
warning = partial(Finding, Level.WARNING)
wrong = partial(Finding, Level.WRONG)


def judge(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return every reason why the service is degraded, with a `ProblemKind` as the check. Empty if it is healthy."""
    problems = [wrong(kind, text) for kind, text in (*_of_replicas(snapshot), *_of_other_groups(snapshot))]
    for group in snapshot.groups:
        by_keys = (*_of_keys(group, snapshot.now_ms), *_of_streams(group))
        found = (*_of_service(snapshot, group), *_of_report(group), *by_keys)
        problems += [wrong(kind, text, group.group) for kind, text in found]
    return tuple(problems)


def _of_replicas(snapshot: Snapshot) -> Iterator[Problem]:
    if snapshot.needs_no_reaper:
        return
    if not snapshot.live:
        fix = "Start `reaper run`, or set --namespace. `reaper status --observe` shows observers."
        if is_observers(snapshot.namespace):
            fix = "Start `reaper run --observe`, or set --namespace."
        yield ProblemKind.NO_REPLICA, f"no live replica in namespace {snapshot.namespace!r}. {fix}"
    has_scanned = any(replica.scan == SCANNED for replica in snapshot.live)
    if not (snapshot.groups or snapshot.left_out or has_scanned):
        yield ProblemKind.NO_GROUPS, "no group is watched. Set groups, or run `reaper watch add`."
    failed = [replica.scan for replica in snapshot.live if replica.scan not in ("", SCANNED)]
    if failed and not has_scanned:
        fix = "Grant `SCAN` to the Redis user of one replica, or run `reaper watch add` for each group."
        yield ProblemKind.NO_SCAN, f"no replica can scan for the streams of patterns: {failed[0]}. {fix}"


def _of_other_groups(snapshot: Snapshot) -> Iterator[Problem]:
    """Judge the groups that were not read, by the counts that the replicas report."""
    if not snapshot.left_out:
        return
    patterns = snapshot.patterns.values()
    watched, held = sum(one.watched for one in patterns), sum(one.held for one in patterns)
    if held < watched and not is_observers(snapshot.namespace):
        yield ProblemKind.UNHELD, f"{watched - held} of {watched} groups are held by no replica."
    in_all = sum((Counter(one.problems) for one in patterns), Counter[str]())
    shown = Counter(
        str(kind) for one in snapshot.groups if one.report for kind in kinds_of(one.report, one.reported_ms)
    )
    for kind, number in (in_all - shown).most_common():
        more = counted(number, "more group has", "more groups have")
        yield ProblemKind(kind), f"{more} the problem {kind}. Run `reaper status --all`."


def _of_service(snapshot: Snapshot, group: GroupState) -> Iterator[Problem]:
    """Yield the reason why no live replica serves the group, if there are live replicas."""
    is_observed, report = is_observers(snapshot.namespace), group.report
    if group.served_by or not snapshot.live:
        return
    if group.held_by and not is_observed:
        why = f"the lease is held by {group.held_by}, which is not a live replica of this namespace"
        fix = "If it serves another namespace, remove the group from the settings of one of the two."
        yield ProblemKind.UNHELD, f"{why}. If it has ended, another replica takes over soon. {fix}"
    elif not snapshot.watchers(group.group):
        if not group.recovers_itself:
            yield ProblemKind.UNSERVED, "no live replica watches this group. Add it to the settings of the replicas."
    elif not is_observed and not (report and (report.disabled or report.error)):
        fix = "If this lasts, see the logs of the replicas and `reaper doctor`."
        yield ProblemKind.UNHELD, f"no replica holds the lease of this group. {fix}"


def _of_report(group: GroupState) -> Iterator[Problem]:
    """Yield the problems that only the report shows, because Redis itself shows the other kinds."""
    report, is_foreign = group.report, group.main.is_foreign
    if report:
        scan_age, log = duration(max(0, group.reported_ms - report.last_scan_ms)), f"See the log of {group.served_by}."
        unable = counted(report.undeliverable, "overdue delivery")
        texts = {
            ProblemKind.ERROR: report.error,
            ProblemKind.DISABLED: f"recovery is disabled: {DISABLED_BECAUSE.get(report.disabled, report.disabled)}",
            ProblemKind.OVERDUE: f"recovery is {duration(report.late_ms)} late. {log}",
            ProblemKind.SCAN_TOO_OLD: f"the last scan was {scan_age} old when the holder of the lease reported. {log}",
            ProblemKind.UNDELIVERABLE: f"{unable} cannot be redelivered. {log}",
        }
        for kind in kinds_of(report, group.reported_ms):
            if kind in texts and not (kind is ProblemKind.DISABLED and is_foreign):
                yield kind, texts[kind]
    if not (group.main.exists or is_foreign or (report and report.disabled)):
        yield ProblemKind.DISABLED, f"recovery is disabled: {DISABLED_BECAUSE['no_group']}"


def _of_keys(group: GroupState, now_ms: int) -> Iterator[Problem]:
    """Yield the problems that the settings of the group, and the age of its deliveries show."""
    word = group.keys.word
    if group.paused:
        yield ProblemKind.PAUSED, f"recovery is paused. Run `reaper groups resume {word}` to resume it."
    yield from ((ProblemKind.MISMATCH, mismatch) for mismatch in group.mismatches)
    if now_ms - group.lost_payload_ms <= RECENT_MS:
        were = counted(group.lost_payload, "entry was", "entries were")
        fix = "Trim only acknowledged entries (XTRIM … ACKED), or raise MAXLEN."
        yield ProblemKind.LOST_PAYLOAD, f"{were} deleted while pending, so only its worker can still run the job. {fix}"
    if group.lost_delivery:
        were = counted(group.lost_delivery, "delivery was", "deliveries were")
        why = "because a third party deleted a consumer or the group"
        yield ProblemKind.LOST_DELIVERY, f"{were} lost, {why}. Run `reaper groups requeue {word} --lost`."
    if now_ms - group.groups_lost_ms <= RECENT_MS:
        why = "the group was destroyed, or all of its consumers were deleted"
        yield ProblemKind.LOST_GROUP, f"{why}. Its jobs are still in the stream."
    idle_ms, late_ms = group.main.oldest_pending_ms or 0, may_be_late_ms(group.visibility_ms)
    if group.recovers_itself and not group.recovery_wait and idle_ms > group.visibility_ms + late_ms:
        idle = f"a delivery has been idle for {duration(idle_ms)}"
        yield ProblemKind.OVERDUE, f"{idle}, and no worker recovers it. See the logs of the workers."


def _of_streams(group: GroupState) -> Iterator[Problem]:
    """Yield the problems of the stream and of the retry stream."""
    for source, key in ((group.main, group.keys.stream), (group.retry, group.keys.retry)):
        if source.is_foreign:
            yield ProblemKind.DISABLED, f"{key} is not a stream: another program uses this name. Rename one of them."
        is_busy = source.pending or (source is group.main and group.retry.pending)
        waiting = source.ready if source.exists or source is group.main else Count(source.entries)
        if waiting.number and not is_busy and _is_unread(source, group.visibility_ms):
            wait = "1 job waits" if str(waiting) == "1" else f"{waiting} jobs wait"
            age = f" for up to {duration(source.oldest_ready_ms)}" if source.oldest_ready_ms else ""
            yield ProblemKind.UNREAD, f"{wait} in {key}{age}, but no worker reads. Check the workers of the group."


def _is_unread(source: SourceState, visibility_ms: int) -> bool:
    """Return whether the oldest ready job and the last read are older than a visibility timeout."""
    if not source.exists:
        return True
    has_waited = (source.oldest_ready_ms or 0) > visibility_ms > 0
    return has_waited and (source.last_read_ms is None or source.last_read_ms > visibility_ms)


def remarks(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield notes about the replicas and the groups."""
    yield from (note("replicas", text) for text in _replica_notes(snapshot))
    for group in snapshot.groups:
        yield from (note("group", text, group.group) for text in _group_notes(group))


def folded(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each text. The same text about several groups is one line."""
    groups_by_text: dict[str, list[str]] = {}
    for finding in findings:
        groups_by_text.setdefault(finding.text, []).append(finding.group)
    return [f"{_several(groups)}{text}" for text, groups in groups_by_text.items()]


def _several(groups: Sequence[str]) -> str:
    named = [group for group in groups if group][:MOST_NAMED]
    others = len(groups) - len(named)
    more = f" and {others} more groups" if named and others else ""
    return f"{', '.join(named)}{more}: " if named else ""


def _replica_notes(snapshot: Snapshot) -> Iterator[str]:
    if is_observers(snapshot.namespace) and snapshot.live:
        yield "the replicas only observe and recover no job"
    recovering = [replica for replica in snapshot.live if not replica.observe]
    if len(recovering) == 1:
        yield f"there is no replica to take over from {recovering[0].id}. Start a second replica."
    for replica in snapshot.live:
        if until_ms := snapshot.drained.get(replica.id):
            left = duration(until_ms - snapshot.now_ms)
            yield f"replica {replica.id} is drained for {left} more. `reaper drain {replica.id} --undo` ends this."
    by_settings: dict[str, list[str]] = {}
    for replica in recovering:
        by_settings.setdefault(replica.settings, []).append(replica.id)
    if len(by_settings) > 1:
        sides = " and ".join(", ".join(names) for names in by_settings.values())
        why = "replicas have different settings, so they do not take groups from each other"
        yield f"{why}: {sides}. Give all replicas the same settings."
    for replica in snapshot.silent:
        yield f"replica {replica.id} has not registered for {duration(max(0, snapshot.now_ms - replica.at_ms))}"
    versions = sorted({replica.version for replica in snapshot.live})
    if len(versions) > 1:
        yield f"replicas of several versions are running: {', '.join(versions)}"


def _group_notes(group: GroupState) -> Iterator[str]:
    if group.recovers_itself:
        yield f"its workers recover stalled jobs (mode {group.mode})"
    if group.recovery_wait:
        yield str(group.recovery_wait)
    if report := group.report:
        yield from _notes_of(report)


def _notes_of(report: GroupReport) -> Iterator[str]:
    if report.false_alarms:
        would = f"{counted(report.recovered, 'delivery', 'deliveries')} that would have been recovered"
        fix = f"A visibility timeout above {report.slowest_ms / 1000:.1f} s avoids these false recoveries."
        yield f"of {would}, {report.false_alarms} were settled by their own consumer later. {fix}"
    if not report.last_scan_ms:
        yield "the first scan of this term is running"
    if report.in_doubt:
        deliveries = counted(report.in_doubt, "delivery", "deliveries")
        yield f"{deliveries} of removed consumers were settled or lost. See the events lost_delivery of the journal."
    if report.false_recoveries:
        were = counted(report.false_recoveries, "delivery was", "deliveries were")
        consumers = ", ".join(f"{on_one_line(name)}: {number}" for name, number in report.false_recoveries_of.items())
        fix = "If it was not restarted under this name, raise the visibility timeout."
        yield f"{were} settled by a consumer after another one was recovered from it ({consumers}). {fix}"


def as_json(snapshot: Snapshot, problems: Sequence[Finding]) -> dict[str, Any]:
    """Return the document of ``reaper status -o json``."""
    return {
        "status": "degraded" if problems else "healthy",
        "problems": [asdict(problem) for problem in problems],
        "notes": folded(remarks(snapshot)),
        "now_ms": snapshot.now_ms,
        "namespace": snapshot.namespace,
        "server": snapshot.server,
        "patterns": [{"pattern": name, **asdict(one)} for name, one in snapshot.patterns.items()],
        "left_out": snapshot.left_out,
        "replicas": replicas_as_json(snapshot),
        "groups": [asdict(group) for group in snapshot.groups],
    }


def replicas_as_json(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the document of ``reaper replicas -o json``."""
    return [
        {name: value for name, value in asdict(replica).items() if name not in ("groups", "patterns")}
        | {"live": replica in snapshot.live, "drained_until_ms": snapshot.drained.get(replica.id)}
        for replica in snapshot.replicas
    ]
