"""Judges an examination: each check that `reaper doctor` makes, with advice. Pure."""

from collections.abc import Iterator, Sequence

from reaper.operations.examination import Examination
from reaper.operations.findings import NOT_SEEN, Finding, note, ok, unknown, wrong
from reaper.operations.group_findings import check_group
from reaper.operations.judgement import Problem, judge, replica_notes
from reaper.operations.server_findings import check_keys, check_rights, check_server_facts
from reaper.operations.state import Snapshot
from reaper.operations.words import duration
from reaper.settings import RENEW_PART, RENEWALS_TRIED, TRUST_PART
from workers.runtime.settings import to_ms


def diagnose(examined: Examination) -> tuple[Finding, ...]:
    """Return the findings of every check, those that are fine included."""
    snapshot = examined.snapshot
    problems = judge(snapshot) if snapshot else ()
    return (
        *check_server_facts(examined.server),
        check_rights(examined.server, any_group=bool(examined.groups)),
        *check_keys(examined.foreign),
        *(_leadership(examined, snapshot, problems) if snapshot else [unknown("leader", NOT_SEEN)]),
        *(finding for facts in examined.groups for finding in check_group(examined, facts, problems)),
    )


def _leadership(examined: Examination, snapshot: Snapshot, problems: Sequence[Problem]) -> Iterator[Finding]:
    if snapshot.needs_no_reaper:
        yield ok("leader", "none is needed, because the workers recover stalled jobs")
    for problem in problems:
        if not problem.group:
            yield wrong("leader", problem.text)
    leader = snapshot.leader
    if leader:
        yield ok("leader", f"{leader.id} leads (term {leader.token})")
        yield from _replicas_disagree(snapshot)
        yield from _lease(examined, snapshot)
    for text in replica_notes(snapshot):
        yield note("replicas", text)


def _replicas_disagree(snapshot: Snapshot) -> Iterator[Finding]:
    """Name pairs and values that live replicas have set differently: a failover would change them."""
    replicas = snapshot.live
    for pair in sorted({pair for replica in replicas for pair in replica.groups}):
        told = {
            replica.id: (report.visibility_ms, report.max_deliveries, report.redelivery) if report else None
            for replica in replicas
            for report in [replica.groups.get(pair)]
        }
        if len(set(told.values())) > 1:
            each = "; ".join(f"{name}: {_settings_text(value)}" for name, value in sorted(told.items()))
            yield wrong("settings", f"replicas have different settings, so a failover changes them: {each}", pair)


def _settings_text(value: tuple[int, int, str] | None) -> str:
    if value is None:
        return "not watched"
    return f"visibility timeout {duration(value[0])}, max deliveries {value[1]}, {value[2]}"


def _lease(examined: Examination, snapshot: Snapshot) -> Iterator[Finding]:
    """Judge the lease by the TTL that its holder names, or, without a holder, by the operator's settings."""
    _, at, ttl = snapshot.holder.rpartition("@")
    ttl_ms = int(ttl) if at and ttl.isdigit() else to_ms(examined.settings.lease_ttl)
    patience_ms = ttl_ms * (TRUST_PART - RENEW_PART) / RENEWALS_TRIED
    if examined.server.round_trip_ms > patience_ms:
        yield wrong(
            "lease",
            f"Redis answers within {examined.server.round_trip_ms:.0f} ms, but a renewal may take only "
            f"{patience_ms:.0f} ms, so terms will end without a reason. Raise lease_ttl.",
        )
    for group in snapshot.groups:
        if not group.recovers_itself and 0 < group.visibility_ms < ttl_ms:
            yield note(
                "lease",
                f"lease_ttl ({duration(ttl_ms)}) is longer than the visibility timeout "
                f"({duration(group.visibility_ms)}), so recovery is late after a crash of the leader. Lower lease_ttl.",
                group.pair,
            )
