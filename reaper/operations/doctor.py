"""Judges an examination: what is wrong, or will be, and what to do. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import inf

from reaper.operations.examination import Examination, GroupFacts, ServerFacts, Span
from reaper.operations.judgement import Problem, Trouble, judge, replica_notes
from reaper.operations.state import GroupState, Snapshot
from reaper.operations.words import duration
from reaper.settings import RENEW_PART, RENEWALS_TRIED, TRUST_PART
from workers.protocol.calls.refusals import explained
from workers.protocol.capabilities import UNSEEN, Capability, in_words
from workers.protocol.keys import READY_CONSUMER, WAITING_CONSUMER
from workers.protocol.messages import Redelivery, counted
from workers.runtime.settings import to_ms

_FIRST_WITH_DRYRUN = 7
_UNSEEN = "not seen: our user may not look; `reaper acl read-only` prints the rights that it takes"
CLOCK_TOLERANCE_MS = 5_000
STREAM_AHEAD_MS = 60_000
MEMORY_FULL = 0.9
CLIENTS_FULL = 0.9
JOBS_IN_A_READ, LARGEST_JOB = 64, 1_048_576
"""What a worker and a producer of ours have by default: `concurrency`, and `max_bytes`."""
FEWEST_RUN_TIMES = 20
PERCENTILE = 0.99


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    UNKNOWN = "unknown"
    """Could not be asked."""
    WARNING = "warning"
    """A risk to remove or to accept; nothing fails because of it now."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check came to."""

    level: Level
    check: str
    text: str
    pair: str = ""
    """Empty where it concerns all."""


ok = partial(Finding, Level.OK)
note = partial(Finding, Level.NOTE)
unknown = partial(Finding, Level.UNKNOWN)
warning = partial(Finding, Level.WARNING)
wrong = partial(Finding, Level.WRONG)


def diagnose(examined: Examination) -> tuple[Finding, ...]:
    """Return the findings of every check, those that are fine included."""
    snapshot = examined.snapshot
    problems = judge(snapshot) if snapshot else ()
    return (
        *_server(examined.server),
        _rights(examined.server, any_group=bool(examined.groups)),
        *_keys(examined.foreign),
        *(_leadership(examined, snapshot, problems) if snapshot else [unknown("leader", _UNSEEN)]),
        *(finding for facts in examined.groups for finding in _group(examined, facts, problems)),
    )


# --- the server ---------------------------------------------------------------------------------------------


def _server(server: ServerFacts) -> Iterator[Finding]:
    yield ok(
        "server", f"{server.release} ({in_words(server.capabilities)}), answers within {server.round_trip_ms:.1f} ms"
    )
    yield _role(server)
    yield _eviction(server)
    yield from _memory(server)
    yield from _clients(server)
    yield from _writes(server)
    yield _persistence(server)
    yield _clock(server)
    if server.config is None:
        yield unknown("config", "not seen: our user may not run CONFIG GET; min-replicas-to-write, save, appendfsync")


def _role(server: ServerFacts) -> Finding:
    if server.info.get("role") == "slave":
        return wrong("replication", "redis_url names a replica: nothing can be written; name the primary")
    replicas = int(server.info.get("connected_slaves", 0))
    if replicas and server.configured("min-replicas-to-write", "unknown") == "0":
        return note(
            "replication",
            f"{counted(replicas, 'replica')}, min-replicas-to-write 0: a failover may lose the last writes (jobs "
            "run again); min-replicas-to-write 1 bounds that",
        )
    return ok("replication", f"primary with {counted(replicas, 'replica')}")


def _eviction(server: ServerFacts) -> Finding:
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ok("eviction", "maxmemory-policy noeviction")
    return wrong(
        "eviction",
        f"maxmemory-policy {policy}: when memory is short Redis deletes keys, jobs or the lease among them; "
        "set noeviction",
    )


def _memory(server: ServerFacts) -> Iterator[Finding]:
    limit, used = int(server.info.get("maxmemory", 0)), int(server.info.get("used_memory", 0))
    if limit and used > limit * MEMORY_FULL:
        yield wrong("memory", f"{used / limit:.0%} of maxmemory is used: producers will be refused; raise it")


def _clients(server: ServerFacts) -> Iterator[Finding]:
    """Tell where the server lets nobody in soon, or hangs up on who asks it for much."""
    connected = int(server.info.get("connected_clients", 0))
    most = int(server.info.get("maxclients", 0) or server.configured("maxclients", "0"))
    if most and connected > most * CLIENTS_FULL:
        yield wrong(
            "clients",
            f"{connected} clients are connected, and the server takes {most}: workers and replicas that start are "
            "refused; raise maxclients, or end what leaves its connections open",
        )
    limit = _reply_limit(server)
    if 0 < limit <= LARGEST_JOB:
        yield wrong(
            "clients",
            f"client-output-buffer-limit normal {limit}: the server hangs up on who reads more at once, and a job may "
            f"have {LARGEST_JOB} bytes (max_bytes of our producers): a larger one than the limit never arrives; set it "
            "to 0 0 0 for normal clients",
        )
    elif 0 < limit <= JOBS_IN_A_READ * LARGEST_JOB:
        yield note(
            "clients",
            f"client-output-buffer-limit normal {limit}: a read of {JOBS_IN_A_READ} jobs (the default concurrency) may "
            f"bring {JOBS_IN_A_READ * LARGEST_JOB} bytes, and the server hangs up on who asks for more than the limit; "
            "workers ask for fewer then. 0 0 0 for normal clients is no limit",
        )
    if server.configured("maxmemory-clients", "0") not in ("0", "0%"):
        yield note(
            "clients",
            f"maxmemory-clients {server.configured('maxmemory-clients', '')}: where all clients together take more, "
            "the server hangs up on those that take most, readers of large jobs first; 0 is no limit",
        )


def _reply_limit(server: ServerFacts) -> int:
    """Return the hard limit of what an ordinary client's replies may take, in bytes; 0 = there is none, or not seen."""
    words = server.configured("client-output-buffer-limit", "").split()
    classes = {words[at]: words[at + 1 : at + 4] for at in range(0, len(words), 4)}
    hard, *_ = classes.get("normal") or ["0"]
    return int(hard) if hard.isdigit() else 0


def _writes(server: ServerFacts) -> Iterator[Finding]:
    """Tell where every write is refused, ours too: nobody leads then, and all that can be read looks well."""
    in_time = server.info.get("min_slaves_good_slaves")  # is there where min-replicas-to-write is set
    least = server.configured("min-replicas-to-write", "1")
    if in_time is not None and int(in_time) < int(least):
        yield wrong(
            "writes",
            f"every write is refused: {counted(int(in_time), 'replica keeps', 'replicas keep')} up, and "
            f"min-replicas-to-write is {least if server.config else 'more'}; bring them back, or lower it",
        )
    failed = server.info.get("rdb_last_bgsave_status", "ok") != "ok"
    if failed and server.configured("stop-writes-on-bgsave-error", "yes") == "yes" and server.configured("save", "?"):
        yield wrong(
            "writes",
            "every write is refused: the last snapshot failed (stop-writes-on-bgsave-error); look at the disk",
        )


def _persistence(server: ServerFacts) -> Finding:
    if not server.info.get("aof_enabled"):
        snapshots = " (snapshots only)" if server.configured("save", "") else ""
        return warning(
            "persistence",
            f"no append-only file{snapshots}: a restart loses jobs that were accepted; set appendonly yes",
        )
    if server.info.get("aof_last_write_status", "ok") != "ok":
        return wrong("persistence", "the last write to the append-only file failed: look at the disk")
    sync = server.configured("appendfsync", "")
    if sync == "no":
        return note(
            "persistence",
            "append-only file, appendfsync no: a crash of the machine may lose many seconds; set everysec",
        )
    return ok("persistence", f"append-only file {sync}".strip())


def _clock(server: ServerFacts) -> Finding:
    ahead = server.ahead_ms
    if abs(ahead) <= CLOCK_TOLERANCE_MS:
        return ok("clock", f"within {duration(abs(ahead))} of this machine's")
    side = "ahead of" if ahead > 0 else "behind"
    return note(
        "clock",
        f"the server's clock is {duration(abs(ahead))} {side} this machine's; recovery goes by the server's alone, "
        "but entry IDs and ages will not match logs: run NTP on both",
    )


def _rights(server: ServerFacts, *, any_group: bool) -> Finding:
    if server.missing_rights is None:
        if not any_group:
            return unknown("rights", "not asked: no group is named, and rights are a group's")
        if int(str(server.info.get("redis_version", "0")).split(".")[0]) < _FIRST_WITH_DRYRUN:
            return unknown("rights", "cannot be asked: ACL DRYRUN came with Redis 7")
        return unknown("rights", "not seen: our user may not ask (ACL WHOAMI, ACL DRYRUN), as an administrator may")
    if server.missing_rights:
        lacks = " ".join(f"+{command}" for command in server.missing_rights)
        return wrong("rights", f"user {server.user} lacks {lacks} for a reaper's work: see `reaper acl reaper`")
    return ok("rights", f"user {server.user} may do what a reaper does")


def _keys(foreign: str | None) -> Iterator[Finding]:
    if foreign is None:
        yield unknown("keys", _UNSEEN)
    elif foreign:
        yield wrong("keys", f"{foreign}: somebody else uses this name; rename the one or the other")


# --- leadership ---------------------------------------------------------------------------------------------


def _leadership(examined: Examination, snapshot: Snapshot, problems: Sequence[Problem]) -> Iterator[Finding]:
    if snapshot.needs_no_reaper:
        yield ok("leader", "none is needed: the workers recover what stalls")
    for problem in problems:
        if not problem.pair:
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
            yield wrong("settings", f"replicas differ, so a failover changes what holds: {each}", pair)


def _settings_text(value: tuple[int, int, str] | None) -> str:
    if value is None:
        return "does not watch it"
    return f"visibility timeout {duration(value[0])}, max deliveries {value[1]}, {value[2]}"


def _lease(examined: Examination, snapshot: Snapshot) -> Iterator[Finding]:
    """Judge the lease that is held by its own TTL, which the holder names; else by the settings of whoever asks."""
    _, at, ttl = snapshot.holder.rpartition("@")
    ttl_ms = int(ttl) if at and ttl.isdigit() else to_ms(examined.settings.lease_ttl)
    patience_ms = ttl_ms * (TRUST_PART - RENEW_PART) / RENEWALS_TRIED
    if examined.server.round_trip_ms > patience_ms:
        yield wrong(
            "lease",
            f"Redis answers within {examined.server.round_trip_ms:.0f} ms, and a renewal may take "
            f"{patience_ms:.0f} ms: terms will end for nothing; raise lease_ttl",
        )
    for group in snapshot.groups:
        if not group.recovers_itself and 0 < group.visibility_ms < ttl_ms:
            yield note(
                "lease",
                f"lease_ttl ({duration(ttl_ms)}) is longer than the visibility timeout "
                f"({duration(group.visibility_ms)}): "
                "after a leader's death recovery is later than that; lower lease_ttl",
                group.pair,
            )


# --- groups -------------------------------------------------------------------------------------------------


def _group(examined: Examination, facts: GroupFacts, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Judge one pair; the judgements below need not name it."""
    if not facts.seen:
        yield unknown("group", _UNSEEN, facts.keys.pair)
        return
    state = examined.state_of(facts.keys.pair)
    found = [*_states(facts, state, problems), *_layout(facts), *_trimming(facts)]
    if state:
        found += [
            *_consumers(state),
            *_in_place(state, facts, examined.server),
            *_counts(state),
            *_visibility(state, facts),
            *_not_in_force(examined, state),
        ]
    if not any(finding.level is Level.WRONG for finding in found):
        found.append(ok("group", f"{counted(facts.groups, 'group')} on the stream, policy fits"))
    yield from (replace(finding, pair=facts.keys.pair) for finding in found)


def _states(facts: GroupFacts, state: GroupState | None, problems: Sequence[Problem]) -> Iterator[Finding]:
    embedded = state is not None and state.recovers_itself
    for problem in problems:
        if problem.pair == facts.keys.pair and not (embedded and problem.trouble is Trouble.UNSERVED):
            yield wrong(str(problem.trouble), problem.text)


def _layout(facts: GroupFacts) -> Iterator[Finding]:
    if facts.layout_refusal:
        yield wrong("layout", explained(facts.layout_refusal))
    elif facts.ahead_ms > STREAM_AHEAD_MS:
        yield wrong(
            "clock",
            f"the stream's last ID lies {duration(facts.ahead_ms)} ahead of the server's clock: the clock was set "
            "back, or somebody writes IDs of his own",
        )


def _trimming(facts: GroupFacts) -> Iterator[Finding]:
    if facts.trimmed_pending:
        yield wrong(
            "trimming",
            f"{facts.trimmed_pending} pending entries were trimmed or deleted: their payloads are lost. Trim by MINID "
            "below the oldest pending entry, or raise MAXLEN",
        )
    if facts.trimmed_unread:
        yield wrong("trimming", "entries were trimmed or deleted before the group was given them: raise MAXLEN")


def _consumers(state: GroupState) -> Iterator[Finding]:
    for consumer in (*state.main.silent, *state.retry.silent):
        yield wrong(
            "consumers",
            f"consumer {consumer.name} holds {counted(consumer.pending, 'delivery')} and has shown no life for "
            f"{duration(consumer.idle_ms)}: it is gone or hangs; its deliveries are recovered when they are due",
        )


def _in_place(state: GroupState, facts: GroupFacts, server: ServerFacts) -> Iterator[Finding]:
    """Say what Redis cannot tell: who reads with CLAIM, and who may take what is laid aside."""
    if state.policy != Redelivery.IN_PLACE:
        return
    if server.capabilities.get(Capability.CLAIM) is False:
        yield wrong(
            "in-place",
            "this server knows no XREADGROUP … CLAIM (Redis 8.4): nothing that is given back is read; go back to Redis "
            "8.4, or "
            + (
                "have a reaper serve the pair, and then set recovery = 'embedded' for its workers"
                if state.recovers_itself
                else "set redelivery = 'retry-stream' in the reaper's settings"
            ),
        )
    nacks = bool(server.capabilities.get(Capability.XNACK)) and "xnack" not in server.missing_newer
    yield ok(
        "in-place",
        f"{counted(state.main.ready_in_place, 'job is', 'jobs are')} ready in place, "
        + (f"nobody's, by XNACK ({UNSEEN}), or " if nacks else "")
        + f"held by consumer {READY_CONSUMER}; what waits is {WAITING_CONSUMER}'s. XGROUP DELCONSUMER of these would "
        "drop their jobs, and any XAUTOCLAIM takes them",
    )
    if server.missing_newer:
        lacks = " ".join(f"+{command}" for command in server.missing_newer)
        yield note(
            "in-place",
            f"user {server.user} lacks {lacks}, which this server knows: what is ready is held by {READY_CONSUMER}, "
            "and readers that block are not woken by Redis itself; see `reaper acl reaper`",
        )
    if facts.foreign:
        names = ", ".join(facts.foreign[:3]) + (" …" if len(facts.foreign) > 3 else "")
        yield note(
            "in-place",
            f"{counted(len(facts.foreign), 'consumer is', 'consumers are')} not ours ({names}): those that read "
            "without CLAIM get none of what is given back, so some others have to",
        )


def _counts(state: GroupState) -> Iterator[Finding]:
    if state.report and state.report.rereads:
        yield wrong(
            "counts",
            f"delivery counts rose without a change of owner (seen: {counted(state.report.rereads, 'time')}): a worker "
            "that is not ours reads its history (XREADGROUP … 0), and Redis counts each such read as a delivery, "
            "towards max_deliveries; set foreign_workers for the pair",
        )


def percentile(spans: Sequence[tuple[Span, int]], share: float) -> Span | None:
    """Return the bounds of the ``share`` quantile of weighted spans; None where there are too few."""
    total = sum(count for _, count in spans)
    if total < FEWEST_RUN_TIMES:
        return None
    seen = 0
    for span, count in sorted(spans, key=lambda one: (one[0][0], inf if one[0][1] is None else one[0][1])):
        seen += count
        if seen >= share * total:
            return span
    return None


def _visibility(state: GroupState, facts: GroupFacts) -> Iterator[Finding]:
    slow = percentile(facts.run_times, PERCENTILE)
    if slow is None or not state.visibility_ms:
        return
    low, high = slow
    known = duration(low) if low == high else f"at least {duration(low)}"
    if low >= state.visibility_ms:
        yield wrong(
            "visibility",
            f"the visibility timeout ({duration(state.visibility_ms)}) is below what 1 job in 100 takes ({known}): "
            "workers that do not extend lose jobs they are still running; raise it above that",
        )
    else:
        yield ok(
            "visibility",
            f"visibility timeout {duration(state.visibility_ms)}; 99 of 100 jobs take less than "
            f"{duration(high) if high else known}",
        )


def _not_in_force(examined: Examination, state: GroupState) -> Iterator[Finding]:
    """Compare what the group has agreed on with the settings of whoever asks, where he named the pair."""
    group = next((one for one in examined.settings.watched if one.keys.pair == state.pair), None)
    if group is None or not examined.settings.model_fields_set & {"visibility_timeout", "max_deliveries", "redelivery"}:
        return
    given = {"visibility_ms": to_ms(group.visibility_timeout), "max_deliveries": group.max_deliveries}
    agreed = {"visibility_ms": state.visibility_ms, "max_deliveries": state.max_deliveries}
    differing = [
        f"{name} {given[name]} (in force: {agreed[name]})" for name in given if agreed[name] not in (0, given[name])
    ]
    if state.policy and state.policy != group.redelivery:
        differing.append(f"redelivery {group.redelivery} (in force: {state.policy})")
    if differing:
        yield wrong("settings", f"these settings are not in force: {', '.join(differing)}")
