"""Decides from the reports of the holders which groups are worst, and why. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from heapq import nlargest, nsmallest
from operator import itemgetter

from reaper.replicas import GroupReport, PatternCounts

MOST_WORST = 20
"""The groups in the heartbeat of a replica, and those that are shown if there are more than `FEW_GROUPS`."""
FEW_GROUPS = 30
"""Up to this many groups, the status, the page and metrics show each of them."""

SCANS_MISSED, SCAN_SLACK_MS, SLOW_SCAN_PER_MS = 3, 1_000, 20
"""A scan is too old after three missed ones, one second, and the time of a full scan of 20 entries per ms."""

LATE_MS, LONGEST_LATE_MS = 2_000, 32_000
"""Recovery may be late by a visibility timeout and `LATE_MS`, and at most by `LONGEST_LATE_MS`."""


class ProblemKind(StrEnum):
    """Kinds of problems, from the worst on. Each makes the service degraded."""

    NO_REPLICA = "no_replica"
    NO_GROUPS = "no_groups"
    NO_SCAN = "no_scan"
    UNSERVED = "unserved"
    """No live replica watches the group."""
    UNHELD = "unheld"
    """No live replica holds its lease."""
    ERROR = "error"
    DISABLED = "disabled"
    """Recovery of the group is disabled, for example because the policy does not support its stream."""
    OVERDUE = "overdue"
    SCAN_TOO_OLD = "scan_too_old"
    UNDELIVERABLE = "undeliverable"
    UNREAD = "unread"
    LOST_DELIVERY = "lost_delivery"
    LOST_GROUP = "lost_group"
    LOST_PAYLOAD = "lost_payload"
    MISMATCH = "mismatch"
    PAUSED = "paused"


REPORTED = (
    ProblemKind.ERROR, ProblemKind.DISABLED, ProblemKind.OVERDUE, ProblemKind.SCAN_TOO_OLD, ProblemKind.UNDELIVERABLE,
    ProblemKind.UNREAD, ProblemKind.LOST_DELIVERY, ProblemKind.PAUSED,
)  # fmt: skip
"""Kinds that the holder of a lease finds, in the order of the signs in `kinds_of`."""
_RANKS = {kind: rank for rank, kind in enumerate(ProblemKind)}


def kinds_of(report: GroupReport, at_ms: int) -> list[ProblemKind]:
    """Return the kinds of problems in the report of a group, of ``at_ms`` (server time). Fast without problems."""
    scan_age_ms = at_ms - report.last_scan_ms if report.last_scan_ms else 0
    oldest_scan_ms = report.scan_interval_ms * SCANS_MISSED + SCAN_SLACK_MS + report.scan_entries // SLOW_SCAN_PER_MS
    signs = (
        report.error,
        report.disabled,
        report.late_ms and report.late_ms > may_be_late_ms(report.visibility_ms),
        scan_age_ms > oldest_scan_ms,
        report.undeliverable,
        report.unread_ms > report.visibility_ms,
        report.lost,
        report.paused,
    )
    return [kind for kind, sign in zip(REPORTED, signs, strict=True) if sign] if any(signs) else []


def may_be_late_ms(visibility_ms: int) -> int:
    """Return how late recovery may be before this is a problem."""
    return min(visibility_ms + LATE_MS, LONGEST_LATE_MS)


def worst(reports: Iterable[GroupReport], at_ms: int, most: int = MOST_WORST) -> list[GroupReport]:
    """Return the reports of the worst groups, the worst first, and then other ones, ``most`` in all."""
    noted, others = list[GroupReport](), list[GroupReport]()
    for one in reports:
        has_news = one.false_alarms or one.in_doubt or one.false_recoveries or kinds_of(one, at_ms)
        (noted if has_news else others).append(one)

    def rank(one: GroupReport) -> tuple[int, int, int, str]:
        by_kind = min((_RANKS[kind] for kind in kinds_of(one, at_ms)), default=len(_RANKS))
        return by_kind, -one.late_ms, -one.undeliverable, one.group

    return nsmallest(most, noted, key=rank) + others[: max(0, most - len(noted))]


def count_patterns(
    numbers: Mapping[str, tuple[int, int]], reports: Iterable[GroupReport], at_ms: int, most: int = MOST_WORST
) -> dict[str, PatternCounts]:
    """Count groups by the pattern that found them. ``numbers`` are watched and held groups by pattern.

    Of more than ``most`` patterns, those with the most groups are kept.
    """
    problems = dict[str, Counter[str]]()
    for report in reports:
        if kinds := kinds_of(report, at_ms):
            problems.setdefault(report.pattern, Counter()).update(map(str, kinds))
    return {
        pattern: PatternCounts(watched=watched, held=held, problems=dict(problems.get(pattern, {})))
        for pattern, (watched, held) in nlargest(most, numbers.items(), key=itemgetter(1))
    }
