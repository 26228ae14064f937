"""Findings about one group: layout, consumers, payloads, and the visibility timeout. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from reaper.operations.examination import Examination, GroupFacts, ServerFacts
from reaper.operations.findings import NOT_SEEN, Finding, Level, note, ok, unknown, wrong
from reaper.operations.judgement import Problem
from reaper.operations.state import GroupState
from reaper.operations.words import duration
from workers.protocol.calls.refusals import explained
from workers.protocol.messages import Redelivery, counted
from workers.protocol.server import UNSEEN, Capability
from workers.runtime.settings import to_ms

STREAM_AHEAD_MS = 60_000
FEWEST_RUN_TIMES = 20
PERCENTILE = 0.99


def check_group(examined: Examination, facts: GroupFacts, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Judge one pair; the judgements below need not name it."""
    if not facts.seen:
        yield unknown("group", NOT_SEEN, facts.keys.pair)
        return
    state = examined.state_of(facts.keys.pair)
    found = [*_states(facts, problems), *_layout(facts), *_trimming(facts)]
    if state:
        found += [
            *([note("recovery", str(state.recovery_wait))] if state.recovery_wait else ()),
            *_consumers(state),
            *_in_place(state, facts, examined.server),
            *_visibility(state, facts),
            *_not_in_force(examined, state),
        ]
    if not any(finding.level is Level.WRONG for finding in found):
        found.append(ok("group", f"{counted(facts.groups, 'group')} on the stream, policy fits"))
    yield from (replace(finding, group=facts.keys.pair) for finding in found)


def _states(facts: GroupFacts, problems: Sequence[Problem]) -> Iterator[Finding]:
    for problem in problems:
        if problem.group == facts.keys.pair:
            yield wrong(str(problem.trouble), problem.text)


def _layout(facts: GroupFacts) -> Iterator[Finding]:
    if facts.layout_refusal:
        yield wrong("layout", explained(facts.layout_refusal))
    elif facts.ahead_ms > STREAM_AHEAD_MS:
        yield wrong(
            "clock",
            f"the stream's last ID is {duration(facts.ahead_ms)} ahead of the server's clock: the clock was set "
            "back, or a producer writes its own IDs",
        )


def _trimming(facts: GroupFacts) -> Iterator[Finding]:
    if facts.trimmed_pending:
        yield wrong(
            "trimming",
            f"{facts.trimmed_pending} pending entries were trimmed or deleted, so their payloads are lost. Trim "
            "by MINID below the oldest pending entry, or raise MAXLEN.",
        )
    if facts.trimmed_unread:
        yield wrong("trimming", "entries were trimmed or deleted before the group read them. Raise MAXLEN.")


def _consumers(state: GroupState) -> Iterator[Finding]:
    for consumer in (*state.main.silent, *state.retry.silent):
        yield wrong(
            "consumers",
            f"consumer {consumer.name} has {counted(consumer.pending, 'pending delivery')} and sent no heartbeat "
            f"for {duration(consumer.idle_ms)}: it crashed or hangs. Its deliveries are recovered when they are "
            "due.",
        )


def _in_place(state: GroupState, facts: GroupFacts, server: ServerFacts) -> Iterator[Finding]:
    """Report facts that Redis does not have: which consumers read with CLAIM, and which may take requeued entries."""
    if state.policy != Redelivery.IN_PLACE:
        return
    if server.capabilities.get(Capability.CLAIM) is False:
        yield wrong(
            "in-place",
            "this server does not support XREADGROUP … CLAIM (Redis 8.4), so requeued jobs are not read. Go back "
            "to Redis 8.4, or "
            + (
                "let a reaper serve the group, and then set recovery = 'embedded' for its workers"
                if state.recovers_itself
                else "set redelivery = 'retry-stream' in the reaper's settings"
            ),
        )
    nacks = bool(server.capabilities.get(Capability.XNACK)) and "xnack" not in server.missing_newer
    yield ok(
        "in-place",
        f"{counted(state.main.ready_in_place, 'job is', 'jobs are')} ready in place, "
        + (f"requeued by XNACK ({UNSEEN}), or " if nacks else "")
        + "pending for their last consumer, idle for 46 days. XGROUP DELCONSUMER of that consumer drops them, "
        "and any XAUTOCLAIM takes them",
    )
    if server.missing_newer:
        lacks = " ".join(f"+{command}" for command in server.missing_newer)
        yield note(
            "in-place",
            f"user {server.user} lacks {lacks}, which this server supports, so requeued jobs stay with their last "
            "consumer and do not wake blocked readers. See `reaper acl reaper`.",
        )
    if facts.foreign:
        names = ", ".join(facts.foreign[:3]) + (" …" if len(facts.foreign) > 3 else "")
        yield note(
            "in-place",
            f"{counted(len(facts.foreign), 'consumer is', 'consumers are')} third-party ({names}). Consumers that "
            "read without CLAIM get no requeued jobs.",
        )


def percentile(run_times_ms: Sequence[int], share: float) -> int | None:
    """Return the ``share`` quantile of run times in ms; None where there are too few."""
    if len(run_times_ms) < FEWEST_RUN_TIMES:
        return None
    return sorted(run_times_ms)[ceil(share * len(run_times_ms)) - 1]


def _visibility(state: GroupState, facts: GroupFacts) -> Iterator[Finding]:
    slow = percentile(facts.run_times_ms, PERCENTILE)
    if slow is None or not state.visibility_ms:
        return
    if slow >= state.visibility_ms:
        yield wrong(
            "visibility",
            f"the visibility timeout ({duration(state.visibility_ms)}) is shorter than 1 job in 100 "
            f"({duration(slow)}), so workers without heartbeats lose running jobs. Raise it.",
        )
    else:
        yield ok(
            "visibility",
            f"visibility timeout {duration(state.visibility_ms)}; 99 of 100 jobs take at most {duration(slow)}",
        )


def _not_in_force(examined: Examination, state: GroupState) -> Iterator[Finding]:
    """Compare the group settings with the operator's settings, if these name the group."""
    group = examined.wished.get(state.pair)
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
