"""Judges an examination: each check that `reaper doctor` makes, with advice. Pure.

It tells the problems and notes of `reaper status`, and what only a look at the server and at single entries shows.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from reaper.operations.examination import Examination, GroupFacts, ServerFacts
from reaper.operations.findings import NOT_SEEN, Finding, Level, note, ok, unknown, warning, wrong
from reaper.operations.judgement import judge, remarks
from reaper.operations.state import GroupState, Snapshot
from reaper.operations.words import duration
from workers.protocol.calls.refusals import explained
from workers.protocol.messages import counted
from workers.runtime.settings import to_ms

FIRST_WITH_DRYRUN = 7
CLOCK_TOLERANCE_MS = 5_000
STREAM_AHEAD_MS = 60_000
FEWEST_RUN_TIMES = 20
PERCENTILE = 0.99


def diagnose(examined: Examination) -> tuple[Finding, ...]:
    """Return the findings of every check, those that are fine included."""
    found = [*_server(examined.server), _rights(examined.server, any_group=bool(examined.groups))]
    found += _service(examined.snapshot) if examined.snapshot else [unknown("replicas", NOT_SEEN)]
    if examined.foreign:
        found.append(wrong("keys", f"{examined.foreign}: another program uses this name. Rename one of them."))
    for facts in examined.groups:
        found += _group(examined, facts)
    bad = {finding.group for finding in found if finding.level in (Level.WRONG, Level.UNKNOWN)}
    good = (facts.keys.pair for facts in examined.groups if facts.keys.pair not in bad)
    return (*found, *(ok("group", "nothing is wrong", pair) for pair in good))


# --- the server ---------------------------------------------------------------------------------------------


def _server(server: ServerFacts) -> Iterator[Finding]:
    claim = {True: " (CLAIM)", False: "", None: " (CLAIM unknown)"}[server.knows_claim]
    yield ok("server", f"{server.release}{claim}, answers within {server.round_trip_ms:.1f} ms")
    yield _replication(server)
    yield _eviction(server)
    yield _persistence(server)
    yield _clock(server)
    if server.config is None:
        yield unknown("config", "the user may not run CONFIG GET, which shows min-replicas-to-write and appendfsync")


def _replication(server: ServerFacts) -> Finding:
    replicas = int(server.info.get("connected_slaves", 0))
    if replicas and server.configured("min-replicas-to-write", "unknown") == "0":
        return note(
            "replication",
            f"{counted(replicas, 'replica')}, min-replicas-to-write 0: a failover can lose the last writes, so "
            "jobs run again. Set min-replicas-to-write 1.",
        )
    return ok("replication", f"primary with {counted(replicas, 'replica')}")


def _eviction(server: ServerFacts) -> Finding:
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ok("eviction", "maxmemory-policy noeviction")
    return wrong(
        "eviction",
        f"maxmemory-policy {policy}: when memory is full, Redis deletes keys, for example jobs or leases. "
        "Set noeviction.",
    )


def _persistence(server: ServerFacts) -> Finding:
    if not server.info.get("aof_enabled"):
        return warning("persistence", "no append-only file: a restart loses accepted jobs. Set appendonly yes.")
    sync = server.configured("appendfsync", "")
    if sync == "no":
        return note(
            "persistence",
            "append-only file, appendfsync no: a crash of the machine can lose many seconds. Set everysec.",
        )
    return ok("persistence", f"append-only file {sync}".strip())


def _clock(server: ServerFacts) -> Finding:
    ahead = server.ahead_ms
    if abs(ahead) <= CLOCK_TOLERANCE_MS:
        return ok("clock", f"within {duration(abs(ahead))} of this machine's")
    side = "ahead of" if ahead > 0 else "behind"
    return note(
        "clock",
        f"the server's clock is {duration(abs(ahead))} {side} this machine's. Recovery uses only the "
        "server's, but entry IDs and ages will not match logs. Run NTP on both.",
    )


def _rights(server: ServerFacts, *, any_group: bool) -> Finding:
    """Return which rights the user lacks. Without ``any_group``, rights on keys are not known."""
    if server.missing_rights is None:
        if not any_group:
            return unknown("rights", "no group is named, and permissions depend on the group")
        if int(str(server.info.get("redis_version", "0")).split(".")[0]) < FIRST_WITH_DRYRUN:
            return unknown("rights", "ACL DRYRUN needs Redis 7")
        return unknown("rights", "the user may not run ACL WHOAMI and ACL DRYRUN")
    if server.missing_rights:
        lacks = " ".join(f"+{command}" for command in server.missing_rights)
        return wrong("rights", f"user {server.user} lacks {lacks} for the work of a reaper. See `reaper acl reaper`.")
    return ok("rights", f"user {server.user} has all permissions of a reaper")


# --- the service, as `reaper status` judges it --------------------------------------------------------------


def _service(snapshot: Snapshot) -> Iterator[Finding]:
    for problem in judge(snapshot):
        yield wrong(str(problem.trouble) if problem.group else "replicas", problem.text, problem.group)
    for pair, text in remarks(snapshot):
        yield note("group" if pair else "replicas", text, pair)
    for replica in snapshot.live:
        yield ok("replicas", f"{replica.id} holds {counted(snapshot.holds(replica.id), 'group')}")


# --- one group ----------------------------------------------------------------------------------------------


def _group(examined: Examination, facts: GroupFacts) -> Iterator[Finding]:
    pair = facts.keys.pair
    if not facts.seen:
        yield unknown("group", NOT_SEEN, pair)
        return
    if facts.layout_refusal:
        yield wrong("layout", explained(facts.layout_refusal), pair)
    elif facts.ahead_ms > STREAM_AHEAD_MS:
        yield wrong(
            "clock",
            f"the stream's last ID is {duration(facts.ahead_ms)} ahead of the server's clock: the clock was set "
            "back, or a producer writes its own IDs",
            pair,
        )
    if facts.trimmed_pending:
        yield wrong(
            "trimming",
            f"{facts.trimmed_pending} pending entries were trimmed or deleted, so their payloads are lost. Trim "
            "by MINID below the oldest pending entry, or raise MAXLEN.",
            pair,
        )
    if facts.trimmed_unread:
        yield wrong("trimming", "entries were trimmed or deleted before the group read them. Raise MAXLEN.", pair)
    state = examined.snapshot and examined.snapshot.group(pair)
    if state:
        yield from _visibility(state, facts.run_times_ms)
        yield from _not_in_force(examined, state)


def percentile(run_times_ms: Sequence[int], share: float) -> int | None:
    """Return the ``share`` quantile of run times in ms; None where there are too few."""
    if len(run_times_ms) < FEWEST_RUN_TIMES:
        return None
    return sorted(run_times_ms)[ceil(share * len(run_times_ms)) - 1]


def _visibility(state: GroupState, run_times_ms: Sequence[int]) -> Iterator[Finding]:
    slow = percentile(run_times_ms, PERCENTILE)
    if slow is None or not state.visibility_ms:
        return
    if slow >= state.visibility_ms:
        yield wrong(
            "visibility",
            f"the visibility timeout ({duration(state.visibility_ms)}) is shorter than 1 job in 100 "
            f"({duration(slow)}), so workers without heartbeats lose running jobs. Raise it.",
            state.pair,
        )
    else:
        yield ok(
            "visibility",
            f"visibility timeout {duration(state.visibility_ms)}; 99 of 100 jobs take at most {duration(slow)}",
            state.pair,
        )


def _not_in_force(examined: Examination, state: GroupState) -> Iterator[Finding]:
    """Compare the group settings with the operator's settings, if these name the group."""
    group = examined.wished.get(state.pair)
    if group is None or not examined.settings.model_fields_set & {"visibility_timeout", "max_deliveries", "redelivery"}:
        return
    pairs = (
        ("visibility_ms", to_ms(group.visibility_timeout), state.visibility_ms),
        ("max_deliveries", group.max_deliveries, state.max_deliveries),
        ("redelivery", str(group.redelivery), state.policy),
    )
    differing = [f"{name} {ours} (in force: {agreed})" for name, ours, agreed in pairs if agreed and agreed != ours]
    if differing:
        yield wrong("settings", f"these settings are not in force: {', '.join(differing)}", state.pair)
