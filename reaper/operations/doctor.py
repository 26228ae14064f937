"""Judges an examination: each check that `reaper doctor` makes, with advice. Pure."""

from collections.abc import Iterator, Sequence

from reaper.operations.examination import Examination
from reaper.operations.findings import NOT_SEEN, Finding, note, ok, unknown, wrong
from reaper.operations.group_findings import check_group
from reaper.operations.judgement import Problem, judge, replica_notes
from reaper.operations.server_findings import check_keys, check_rights, check_server_facts
from reaper.operations.state import GroupState, Snapshot
from reaper.operations.words import duration
from reaper.settings import LEASES, SHORTEST_DERIVED_LEASE, TICKS
from workers.protocol.messages import counted
from workers.runtime.settings import to_ms

SHORTEST_TTL_MS = to_ms(SHORTEST_DERIVED_LEASE)


def diagnose(examined: Examination) -> tuple[Finding, ...]:
    """Return the findings of every check, those that are fine included."""
    snapshot = examined.snapshot
    problems = judge(snapshot) if snapshot else ()
    return (
        *check_server_facts(examined.server),
        check_rights(examined.server, any_group=bool(examined.groups)),
        *check_keys(examined.foreign),
        *(_replicas(examined, snapshot, problems) if snapshot else [unknown("replicas", NOT_SEEN)]),
        *(finding for facts in examined.groups for finding in check_group(examined, facts, problems)),
    )


def _replicas(examined: Examination, snapshot: Snapshot, problems: Sequence[Problem]) -> Iterator[Finding]:
    if snapshot.needs_no_reaper:
        yield ok("replicas", "none is needed, because the workers recover stalled jobs")
    for problem in problems:
        if not problem.group:
            yield wrong("replicas", problem.text)
    for replica in snapshot.live:
        yield ok("replicas", f"{replica.id} holds {counted(snapshot.holds(replica.id), 'group')}")
    for text in replica_notes(snapshot):
        yield note("replicas", text)
    if snapshot.live:
        yield from _leases(examined, snapshot)


def _leases(examined: Examination, snapshot: Snapshot) -> Iterator[Finding]:
    """Judge the leases by the TTL that each holder names, or, without a holder, by the operator's settings."""
    ttls = {group.pair: _ttl_ms(examined, group) for group in snapshot.groups if not group.recovers_itself}
    late = [pair for pair, ttl_ms in ttls.items() if examined.server.round_trip_ms > ttl_ms / TICKS]
    if late:
        shortest = min(ttls[pair] for pair in late)
        yield wrong(
            "lease",
            f"Redis answers within {examined.server.round_trip_ms:.0f} ms, and a lease of {duration(shortest)} is "
            f"renewed every {duration(shortest // TICKS)}, so leases can expire. Raise lease_ttl and the visibility "
            "timeout, or move the replicas closer to Redis.",
        )
    for group in snapshot.groups:
        if group.pair in ttls and 0 < group.visibility_ms < SHORTEST_TTL_MS * LEASES:
            yield note(
                "lease",
                f"the visibility timeout ({duration(group.visibility_ms)}) is shorter than "
                f"{duration(SHORTEST_TTL_MS * LEASES)}, so recovery waits one more timeout after a crash of the "
                "holder. Raise it.",
                group.pair,
            )


def _ttl_ms(examined: Examination, group: GroupState) -> int:
    _, at, ttl = group.holder.rpartition("@")
    if at and ttl.isdigit():
        return int(ttl)
    by_visibility = max(SHORTEST_TTL_MS, (group.visibility_ms or SHORTEST_TTL_MS) // LEASES)
    return min(to_ms(examined.settings.lease_ttl), by_visibility)
