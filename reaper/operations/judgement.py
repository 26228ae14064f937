"""Decides from a snapshot whether the service is healthy, and says why not. Pure.

`reaper.operations.snapshot` gathers the facts from Redis. Times are milliseconds; instants are the server's clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reaper.operations.state import Count, GroupState, Snapshot
from reaper.operations.words import duration, with_group
from reaper.reasons import REFUSALS, ProblemKind, kinds_of, may_be_late_ms, problems_of, remarks_of
from reaper.replicas import SCANNED, Replica
from reaper.settings import is_observers
from workers.protocol.messages import LAST_ENTRY_ID, counted

RECENT_MS = 3_600_000
"""For so long the service is degraded after an entry was found deleted although it was pending; then it is a note."""

MOST_NAMED = 3
"""Groups that a line names of which the same is said."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why the service is degraded. ``group`` is empty if it concerns all."""

    trouble: ProblemKind
    group: str
    text: str


def judge(snapshot: Snapshot) -> tuple[Problem, ...]:
    """Return every reason why the service is degraded. Empty if it is healthy."""
    problems = [*_judge_replicas(snapshot), *_judge_others(snapshot)]
    for group in snapshot.groups:
        problems += [Problem(trouble, group.pair, text) for trouble, text in _judge_group(snapshot, group)]
    return tuple(problems)


def _judge_replicas(snapshot: Snapshot) -> Iterator[Problem]:
    if snapshot.needs_no_reaper or (snapshot.is_tried_out and snapshot.groups):
        return
    if not snapshot.live:
        start = "reaper run --observe" if is_observers(snapshot.namespace) else "reaper run"
        yield Problem(
            ProblemKind.NO_REPLICA,
            "",
            f"no live replica in namespace {snapshot.namespace!r}. Start `{start}`, or name its namespace.",
        )
    has_scanned = any(replica.scan == SCANNED for replica in snapshot.live)
    if not snapshot.groups and not has_scanned:
        yield Problem(ProblemKind.NO_GROUPS, "", "no group is watched. Set groups.")
    failed = [replica for replica in snapshot.live if replica.scan not in ("", SCANNED)]
    if failed and not has_scanned:
        yield Problem(
            ProblemKind.NO_SCAN,
            "",
            f"no replica can scan for the streams of patterns: {failed[0].scan}. Grant `SCAN` to the Redis user of one "
            "replica, or run `reaper watch add` for each group.",
        )


def _judge_others(snapshot: Snapshot) -> Iterator[Problem]:
    """Judge the other groups by the counts that the replicas report."""
    if not snapshot.left_out:
        return
    patterns = snapshot.patterns.values()
    watched, held = (sum(getattr(one, name) for one in patterns) for name in ("watched", "held"))
    if held < watched and not is_observers(snapshot.namespace):
        yield Problem(ProblemKind.UNHELD, "", f"{watched - held} of {watched} groups are held by no replica.")
    in_all = sum((Counter(one.problems) for one in patterns), Counter[str]())
    shown = Counter(
        str(kind) for one in snapshot.groups if one.report for kind in kinds_of(one.report, one.reported_ms)
    )
    for kind, number in (in_all - shown).most_common():
        more = counted(number, "more group is", "more groups are")
        yield Problem(ProblemKind(kind), "", f"{more} {kind}. Run `reaper status --all`.")


def judge_service(snapshot: Snapshot, group: GroupState) -> Iterator[tuple[ProblemKind, str]]:
    """Yield the reason why no live replica serves the group, if there are live replicas."""
    watching = snapshot.watchers(group.pair)
    cannot = group.report and (group.report.refusal or group.report.error)
    if group.served_by or not snapshot.live:
        return
    if group.held_by and not is_observers(snapshot.namespace):
        why = (
            f"the lease is held by {group.held_by}, which is not a live replica of this namespace. If it has ended, "
            "another replica takes over when the lease expires. If it serves another namespace, remove the group from "
            "the settings of one of the two."
        )
        yield ProblemKind.UNHELD, why
    elif not watching and not group.recovers_itself:
        yield ProblemKind.UNSERVED, "no live replica watches this group. Add it to the settings of the replicas."
    elif watching and not cannot and not is_observers(snapshot.namespace):
        why = (
            "no replica holds the lease of this group. If this lasts, see the logs of the replicas and `reaper doctor`."
        )
        yield ProblemKind.UNHELD, why


def _judge_group(snapshot: Snapshot, group: GroupState) -> Iterator[tuple[ProblemKind, str]]:
    report = group.report
    yield from judge_service(snapshot, group)
    if group.paused:
        yield ProblemKind.PAUSED, f"recovery is paused. Run `reaper groups resume {group.keys.word}` to resume it."
    yield from _judge_keys(group)
    if not group.main.exists and not group.main.is_foreign and not (report and report.refusal):
        yield ProblemKind.REFUSED, f"recovery is disabled: {REFUSALS['no_group']}"
    for mismatch in group.mismatches:
        yield ProblemKind.MISMATCH, mismatch
    for kind, why in problems_of(report, group.reported_ms, group.served_by) if report else ():
        is_seen = kind is ProblemKind.UNREAD or (kind is ProblemKind.REFUSED and group.main.is_foreign)
        if not is_seen:  # else Redis says so itself
            yield kind, why
    yield from _judge_losses(group, snapshot.now_ms)
    idle_ms = group.main.oldest_pending_ms or 0
    if (
        group.recovers_itself
        and not group.recovery_wait
        and idle_ms > group.visibility_ms + may_be_late_ms(group.visibility_ms)
    ):
        yield (
            ProblemKind.OVERDUE,
            (
                f"a delivery has been idle for {idle_ms / 1000:.0f} s, and no worker recovers it. See the logs of the "
                "workers."
            ),
        )
    if _retry_is_unread(group):
        yield (
            ProblemKind.RETRY_UNREAD,
            f"{_waiting(group.retry.ready)} in the retry stream, but no worker reads it. Let the workers read it.",
        )
    if _is_unread(group):
        waited_s = (group.main.oldest_ready_ms or 0) // 1000
        yield (
            ProblemKind.UNREAD,
            (
                f"{_waiting(group.main.ready)}, for up to {waited_s} s, but no worker reads. Check the workers of the "
                "group."
            ),
        )


def _judge_losses(group: GroupState, now_ms: int) -> Iterator[tuple[ProblemKind, str]]:
    if group.lost_payload and now_ms - group.lost_payload_ms <= RECENT_MS:
        yield ProblemKind.LOST_PAYLOAD, f"{_lost_payload(group)}: {TRIMMED}"
    if group.lost_deliveries:
        were = counted(group.lost_deliveries, "delivery was", "deliveries were")
        requeue = f"`reaper groups requeue {group.keys.word} --lost`"
        yield (
            ProblemKind.LOST_DELIVERY,
            f"{were} lost, because a third party deleted a consumer or the group. Run {requeue}.",
        )
    if group.groups_lost and now_ms - group.groups_lost_ms <= RECENT_MS:
        yield (
            ProblemKind.LOST_GROUP,
            "the group was destroyed, or all of its consumers were deleted. Its jobs are still in the stream.",
        )


def _judge_keys(group: GroupState) -> Iterator[tuple[ProblemKind, str]]:
    for source, key in ((group.main, group.keys.stream), (group.retry, group.keys.retry)):
        if source.is_foreign:
            yield ProblemKind.REFUSED, f"{key} is not a stream: another program uses this name. Rename one of them."
        if source.is_exhausted:
            why = f"{key} has delivered the last possible entry ID, {LAST_ENTRY_ID.decode()}"
            yield (
                ProblemKind.EXHAUSTED,
                f"{why}, so Redis adds no more entries. Let producers use another stream.",
            )


def _waiting(ready: Count) -> str:
    return "1 job waits" if str(ready) == "1" else f"{ready} jobs wait"


TRIMMED = (
    "only its worker can still run such a job, once. Exclude pending entries from trimming and deleting "
    "(XTRIM … ACKED, or a longer MAXLEN)."
)


def _lost_payload(group: GroupState) -> str:
    what = counted(group.lost_payload, "entry was", "entries were")
    return f"{what} deleted while pending"


def _retry_is_unread(group: GroupState) -> bool:
    """Tell whether redelivery copies wait where no consumer has read since they came.

    Redis before 7.2 does not record empty reads, so a consumer gets the visibility timeout to take
    what waits before it counts as absent.
    """
    retry = group.retry
    if not retry.exists:
        return retry.entries > 0
    if not retry.ready.number:
        return False
    if not retry.consumers or retry.last_read_ms is None:
        return True
    waited = retry.oldest_ready_ms or 0
    return waited > group.visibility_ms and retry.last_read_ms > waited


def _is_unread(group: GroupState) -> bool:
    """Tell whether jobs wait, none are pending, and no consumer has read for longer than a visibility timeout.

    Workers whose slots are all taken hold something, so they are not meant, however long the jobs behind them wait.
    """
    main = group.main
    if not main.ready.number or main.pending or group.retry.pending or not group.visibility_ms:
        return False
    waited = main.oldest_ready_ms or 0
    return waited > group.visibility_ms and (main.last_read_ms is None or main.last_read_ms > group.visibility_ms)


def remarks(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the notes about a healthy service, each with its pair or ''."""
    for text in _replica_notes(snapshot):
        yield "", text
    for group in snapshot.groups:
        for text in _group_notes(group, snapshot.now_ms):
            yield group.pair, text


def folded(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each text. The same text about several groups is one line."""
    pairs_by_text: dict[str, list[str]] = {}
    for pair, text in said:
        pairs_by_text.setdefault(text, []).append(pair)
    return [f"{_several(pairs)}{text}" for text, pairs in pairs_by_text.items()]


def _several(pairs: Sequence[str]) -> str:
    named = [pair for pair in pairs if pair][:MOST_NAMED]
    others = len(pairs) - len(named)
    more = f" and {others} more groups" if named and others else ""
    return f"{', '.join(named)}{more}: " if named else ""


def _replica_notes(snapshot: Snapshot) -> Iterator[str]:
    if is_observers(snapshot.namespace) and snapshot.live:
        yield "the replicas only observe and recover no job"
    if snapshot.is_tried_out:
        names = ", ".join(one.id for one in snapshot.observers)
        yield f"no replica recovers jobs: {names} observes. `reaper status --observe` shows what it would recover."
    recovering = [replica for replica in snapshot.live if not replica.observe]
    if len(recovering) == 1:
        yield f"there is no replica to take over from {recovering[0].id}. Start a second replica."
    for replica in snapshot.live:
        if until_ms := snapshot.drained.get(replica.id):
            left = duration(until_ms - snapshot.now_ms)
            yield f"replica {replica.id} is drained for {left} more. `reaper drain {replica.id} --undo` ends this."
    yield from _different_settings(recovering)
    for replica in snapshot.silent:
        yield f"replica {replica.id} has not registered for {(snapshot.now_ms - replica.at_ms) // 1000} s"
    versions = sorted({replica.version for replica in snapshot.live})
    if len(versions) > 1:
        yield f"replicas of several versions are running: {', '.join(versions)}"


def _different_settings(replicas: Sequence[Replica]) -> Iterator[str]:
    """Replicas take groups only from replicas with the same settings."""
    by_settings: dict[str, list[str]] = {}
    for replica in replicas:
        by_settings.setdefault(replica.settings, []).append(replica.id)
    if len(by_settings) > 1:
        sides = " and ".join(", ".join(names) for names in by_settings.values())
        yield (
            f"replicas have different settings, so they do not take groups from each other: {sides}. Give all replicas "
            "the same settings."
        )


def _group_notes(group: GroupState, now_ms: int) -> Iterator[str]:
    if group.recovers_itself:
        yield f"its workers recover stalled jobs (mode {group.mode})"
    if group.recovery_wait:
        yield str(group.recovery_wait)
    if group.lost_payload and now_ms - group.lost_payload_ms > RECENT_MS:
        yield f"{_lost_payload(group)}, the last of them more than an hour ago"
    if group.report:
        yield from remarks_of(group.report)
    for consumer in (*group.main.silent, *group.retry.silent):
        has = counted(consumer.pending, "delivery")
        yield f"consumer {consumer.name} has {has} and has been silent for {consumer.idle_ms // 1000} s"


def as_json(snapshot: Snapshot, problems: Sequence[Problem]) -> dict[str, Any]:
    """Return what ``reaper status -o json`` prints."""
    return {
        "status": "degraded" if problems else "healthy",
        "problems": [asdict(problem) for problem in problems],
        "notes": folded(remarks(snapshot)),
        "now_ms": snapshot.now_ms,
        "namespace": snapshot.namespace,
        "server": snapshot.server,
        "patterns": [{"pattern": name, **asdict(one)} for name, one in snapshot.patterns.items()],
        "left_out": snapshot.left_out,
        "replicas": [
            {name: value for name, value in asdict(replica).items() if name not in ("groups", "patterns")}
            | {
                "live": replica in snapshot.live,
                "holds": snapshot.holds(replica.id),
                "drained_until_ms": snapshot.drained.get(replica.id),
            }
            for replica in snapshot.replicas
        ],
        "groups": [asdict(group, dict_factory=with_group) for group in snapshot.groups],
    }
