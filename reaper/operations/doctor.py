"""Judges an examination: what is wrong, or will be, and what to do. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reaper.operations.examination import Examination, GroupFacts, Server, Span
from reaper.operations.judgement import Trouble, judge, notes
from reaper.operations.state import GroupState
from reaper.operations.words import duration
from reaper.settings import RENEW_PART, RENEWALS_TRIED, TRUST_PART
from workers.runtime.settings import to_ms

CLOCK_TOLERANCE_MS = 5_000
STREAM_AHEAD_MS = 60_000
MEMORY_FULL = 0.9
FEWEST_RUN_TIMES = 20
PERCENTILE = 0.99


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    UNKNOWN = "unknown"
    """Could not be asked."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check came to. ``pair`` is empty where it concerns all."""

    level: Level
    check: str
    pair: str
    text: str


def diagnose(examined: Examination) -> tuple[Finding, ...]:
    """Return the findings of every check, those that are fine included."""
    return (
        *_server(examined.server),
        *_rights(examined.server),
        *_leadership(examined),
        *(finding for group in examined.groups for finding in _group(examined, group)),
    )


# --- the server ---------------------------------------------------------------------------------------------


def _server(server: Server) -> Iterator[Finding]:
    can = ", ".join(f"{name} {_yes_no(known)}" for name, known in server.capabilities.items())
    yield Finding(
        Level.OK, "server", "", f"Redis {server.version} ({can}), answers within {server.round_trip_ms:.1f} ms"
    )
    yield _role(server)
    yield _eviction(server)
    yield from _memory(server)
    yield from _persistence(server)
    yield _clock(server)


def _yes_no(known: bool | None) -> str:
    return "unknown" if known is None else "yes" if known else "no"


def _role(server: Server) -> Finding:
    if server.info.get("role") == "slave":
        return Finding(
            Level.WRONG, "replication", "", "redis_url names a replica: nothing can be written; name the primary"
        )
    replicas = int(server.info.get("connected_slaves", 0))
    wanted = (server.config or {}).get("min-replicas-to-write", "0")
    if replicas and wanted == "0":
        text = (
            f"{replicas} replicas, min-replicas-to-write 0: a failover may lose the last writes (jobs run again); "
            "min-replicas-to-write 1 bounds that"
        )
        return Finding(Level.NOTE, "replication", "", text)
    return Finding(Level.OK, "replication", "", f"primary with {replicas} replicas")


def _eviction(server: Server) -> Finding:
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return Finding(Level.OK, "eviction", "", "maxmemory-policy noeviction")
    return Finding(
        Level.WRONG,
        "eviction",
        "",
        f"maxmemory-policy {policy}: when memory is short Redis deletes keys, jobs or the lease among them; "
        "set noeviction",
    )


def _memory(server: Server) -> Iterator[Finding]:
    limit, used = int(server.info.get("maxmemory", 0)), int(server.info.get("used_memory", 0))
    if limit and used > limit * MEMORY_FULL:
        yield Finding(
            Level.WRONG, "memory", "", f"{used / limit:.0%} of maxmemory is used: producers will be refused; raise it"
        )


def _persistence(server: Server) -> Iterator[Finding]:
    info, config = server.info, server.config or {}
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(Level.WRONG, "persistence", "", "the last write to the append-only file failed: look at the disk")
    elif info.get("aof_enabled"):
        sync = config.get("appendfsync", "")
        weak = sync == "no"
        text = "append-only file, appendfsync no: a crash of the machine may lose many seconds; set everysec"
        yield Finding(
            *(
                (Level.NOTE, "persistence", "", text)
                if weak
                else (Level.OK, "persistence", "", f"append-only file {sync}".strip())
            )
        )
    else:
        saves = config.get("save")
        snapshots = " (snapshots only)" if saves else ""
        yield Finding(
            Level.WRONG,
            "persistence",
            "",
            f"no append-only file{snapshots}: a restart loses jobs that were accepted; set appendonly yes",
        )


def _clock(server: Server) -> Finding:
    ahead = server.ahead_ms
    if abs(ahead) > CLOCK_TOLERANCE_MS:
        side = "ahead of" if ahead > 0 else "behind"
        text = (
            f"the server's clock is {duration(abs(ahead))} {side} this machine's; recovery goes by the server's alone, "
            "but entry IDs and ages will not match logs: run NTP on both"
        )
        return Finding(Level.NOTE, "clock", "", text)
    return Finding(Level.OK, "clock", "", f"within {duration(abs(ahead))} of this machine's")


def _rights(server: Server) -> Iterator[Finding]:
    if server.missing_rights is None:
        yield Finding(Level.UNKNOWN, "rights", "", "cannot be asked (ACL DRYRUN needs Redis 7 and the right to use it)")
    elif server.missing_rights:
        lacks = " ".join(f"+{command}" for command in server.missing_rights)
        yield Finding(
            Level.WRONG, "rights", "", f"user {server.user} lacks {lacks} for a reaper's work: see `reaper acl reaper`"
        )
    else:
        yield Finding(Level.OK, "rights", "", f"user {server.user} may do what a reaper does")


# --- leadership ---------------------------------------------------------------------------------------------


def _leadership(examined: Examination) -> Iterator[Finding]:
    problems = [problem for problem in judge(examined.snapshot) if not problem.pair]
    if examined.snapshot.needs_no_reaper:
        yield Finding(Level.OK, "leader", "", "none is needed: the workers recover what stalls (embedded mode)")
    for problem in problems:
        yield Finding(Level.WRONG, "leader", "", problem.text)
    leader = examined.snapshot.leader
    if leader:
        yield Finding(Level.OK, "leader", "", f"{leader.id} leads (term {leader.token})")
        yield from _replicas_disagree(examined)
        yield from _lease(examined)
    for note in notes(examined.snapshot):
        if not any(note.startswith(f"{group.pair}:") for group in examined.snapshot.groups):
            yield Finding(Level.NOTE, "replicas", "", note)


def _replicas_disagree(examined: Examination) -> Iterator[Finding]:
    """Name pairs and values that live replicas have set differently: a failover would change them."""
    replicas = examined.snapshot.live
    for pair in sorted({pair for replica in replicas for pair in replica.groups}):
        told = {
            replica.id: (report.visibility_ms, report.max_deliveries, report.redelivery) if report else None
            for replica in replicas
            for report in [replica.groups.get(pair)]
        }
        if len(set(told.values())) > 1:
            each = "; ".join(f"{name}: {_settings_text(value)}" for name, value in sorted(told.items()))
            yield Finding(Level.WRONG, "settings", pair, f"replicas differ, so a failover changes what holds: {each}")


def _settings_text(value: tuple[int, int, str] | None) -> str:
    if value is None:
        return "does not watch it"
    return f"visibility timeout {duration(value[0])}, max deliveries {value[1]}, {value[2]}"


def _lease(examined: Examination) -> Iterator[Finding]:
    """Judge the lease that is held by its own TTL, which the holder names; else by the settings of whoever asks."""
    settings = examined.settings
    _, at, ttl = examined.snapshot.holder.rpartition("@")
    ttl_ms = int(ttl) if at and ttl.isdigit() else to_ms(settings.lease_ttl)
    patience_ms = ttl_ms * (TRUST_PART - RENEW_PART) / RENEWALS_TRIED
    if examined.server.round_trip_ms > patience_ms:
        yield Finding(
            Level.WRONG,
            "lease",
            "",
            f"Redis answers within {examined.server.round_trip_ms:.0f} ms, and a renewal may take "
            f"{patience_ms:.0f} ms: terms will end for nothing; raise lease_ttl",
        )
    for group in examined.snapshot.groups:
        if group.mode != "embedded" and 0 < group.visibility_ms < ttl_ms:
            yield Finding(
                Level.NOTE,
                "lease",
                group.pair,
                f"lease_ttl ({duration(ttl_ms)}) is longer than the visibility timeout "
                f"({duration(group.visibility_ms)}): "
                "after a leader's death recovery is later than that; lower lease_ttl",
            )


# --- groups -------------------------------------------------------------------------------------------------


def _group(examined: Examination, facts: GroupFacts) -> Iterator[Finding]:
    pair = facts.keys.pair
    state = next((one for one in examined.snapshot.groups if one.pair == pair), None)
    found = [*_states(examined, pair), *_layout(facts), *_trimming(facts)]
    if state:
        found += [*_consumers(state), *_visibility(state, facts), *_configured(examined, state)]
    if not any(finding.level is Level.WRONG for finding in found):
        found.append(Finding(Level.OK, "group", pair, f"{facts.groups} groups on the stream, policy fits"))
    yield from found


def _states(examined: Examination, pair: str) -> Iterator[Finding]:
    embedded = any(group.pair == pair and group.mode == "embedded" for group in examined.snapshot.groups)
    for problem in judge(examined.snapshot):
        if problem.pair == pair and not (embedded and problem.trouble is Trouble.UNSERVED):
            yield Finding(Level.WRONG, str(problem.trouble), pair, problem.text)


def _layout(facts: GroupFacts) -> Iterator[Finding]:
    if facts.layout_refusal == "several_groups":
        yield Finding(
            Level.WRONG,
            "layout",
            facts.keys.pair,
            f"the stream has {facts.groups} groups, and with redelivery 'stream' each would see every copy: set "
            "redelivery = 'retry-stream'",
        )
    elif facts.layout_refusal:
        yield Finding(
            Level.WRONG,
            "layout",
            facts.keys.pair,
            "the stream's entry IDs are not the server's own: set redelivery = 'retry-stream'",
        )
    if not facts.layout_refusal and facts.ahead_ms > STREAM_AHEAD_MS:
        yield Finding(
            Level.WRONG,
            "clock",
            facts.keys.pair,
            f"the stream's last ID lies {duration(facts.ahead_ms)} ahead of the server's clock: the clock was set "
            "back, or somebody writes IDs of his own",
        )


def _trimming(facts: GroupFacts) -> Iterator[Finding]:
    pair = facts.keys.pair
    if facts.trimmed_pending:
        yield Finding(
            Level.WRONG,
            "trimming",
            pair,
            f"{facts.trimmed_pending} pending entries were trimmed or deleted: their payloads are lost. Trim by MINID "
            "below the oldest pending entry, or raise MAXLEN",
        )
    if facts.trimmed_unread:
        yield Finding(
            Level.WRONG,
            "trimming",
            pair,
            "entries were trimmed or deleted before the group was given them: raise MAXLEN",
        )


def _consumers(state: GroupState) -> Iterator[Finding]:
    for consumer in (*state.main.silent, *state.retry.silent):
        yield Finding(
            Level.WRONG,
            "consumers",
            state.pair,
            f"consumer {consumer.name} holds {consumer.pending} deliveries and has shown no life for "
            f"{duration(consumer.idle_ms)}: it is gone or hangs; its deliveries are recovered when they are due",
        )


def percentile(spans: Sequence[tuple[Span, int]], share: float) -> Span | None:
    """Return the bounds of the ``share`` quantile of weighted spans; None where there are too few."""
    total = sum(count for _, count in spans)
    if total < FEWEST_RUN_TIMES:
        return None
    seen = 0
    for span, count in sorted(spans):
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
        yield Finding(
            Level.WRONG,
            "visibility",
            state.pair,
            f"the visibility timeout ({duration(state.visibility_ms)}) is below what 1 job in 100 takes ({known}): "
            "workers that do not extend lose jobs they are still running; raise it above that",
        )
    else:
        yield Finding(
            Level.OK,
            "visibility",
            state.pair,
            f"visibility timeout {duration(state.visibility_ms)}; 99 of 100 jobs take less than "
            f"{duration(high) if high else known}",
        )


def _configured(examined: Examination, state: GroupState) -> Iterator[Finding]:
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
        yield Finding(Level.WRONG, "settings", state.pair, f"these settings are not in force: {', '.join(differing)}")
