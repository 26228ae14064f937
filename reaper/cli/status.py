"""``reaper status`` and ``reaper replicas``: one screen for people, or JSON."""

from collections.abc import Iterator, Sequence

import click

from reaper.cli.options import connected, json_option, replicas_options, show_result, status_options
from reaper.operations.durations import duration
from reaper.operations.judgement import Finding, as_json, folded, judge, remarks, replicas_as_json
from reaper.operations.snapshot import look_at_namespace, take_snapshot
from reaper.operations.state import Count, GroupState, Snapshot, SourceState
from reaper.reasons import FEW_GROUPS
from reaper.settings import ReaperSettings
from workers.protocol.messages import counted
from workers.runtime.options import help_end
from workers.runtime.printing import styled


@click.command(
    epilog=help_end(
        "reaper status",
        "reaper status --group 'orders:*/billing'",
        "reaper status -o json",
        ok="healthy",
        no="degraded: the last lines give the reasons",
    )
)
@status_options
@json_option
@click.option("--group", "glob", metavar="GLOB", default="", help="Show the groups that match, as STREAM/GROUP.")
@click.option("--all", "glob", flag_value="*", help="Show all groups. Of many, only the worst are shown by default.")
async def status(machine: bool, glob: str, settings: ReaperSettings) -> bool:
    """Show the replicas, the groups and their problems."""
    async with connected(settings) as (client, server):
        snapshot = await take_snapshot(client, settings.namespace_keys, settings.groups, server, glob=glob)
    problems = judge(snapshot)
    show_result(as_json(snapshot, problems), *_screen(snapshot, problems), machine=machine)
    return not problems


@click.command(epilog=help_end("reaper replicas", "reaper replicas --observe -o json", ok="done, also if none"))
@replicas_options
@json_option
async def replicas(machine: bool, settings: ReaperSettings) -> None:
    """List the replicas, each with its number of groups."""
    async with connected(settings) as (client, server):
        snapshot = await look_at_namespace(client, settings.namespace_keys, server)
    show_result(replicas_as_json(snapshot), *_replica_lines(snapshot), machine=machine)


def _screen(snapshot: Snapshot, problems: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines of the screen."""
    yield from _replica_lines(snapshot)
    is_brief = len(snapshot.groups) + snapshot.left_out > FEW_GROUPS
    if is_brief:
        yield from _pattern_lines(snapshot)
        yield ""
    for group in snapshot.groups:
        troubles = [problem.text for problem in problems if problem.group == group.group]
        title = f"{styled(group.group, 'bold')}  {styled(*(('degraded', 'red') if troubles else ('healthy', 'green')))}"
        if is_brief:
            holder = f"holder {group.held_by}" if group.held_by else ""
            facts = [holder, _ready(group.main), _pending(group.main), f"dead letters {group.dead_letters}", *troubles]
            yield f"{title}  {' · '.join(filter(None, facts))}"
        else:
            yield from ("", title, *_group_lines(group))
    if snapshot.left_out:
        yield f"… and {counted(snapshot.left_out, 'more group')}: see --group GLOB, or --all"
    yield ""
    for remark in folded(remarks(snapshot)):
        yield f"{styled('note', 'yellow')}  {remark}"
    yield styled("degraded", "red", "bold") if problems else styled("healthy", "green", "bold")
    for line in folded(problems):
        yield f"  - {line}"


def _row(label: str, *parts: str) -> str:
    return f"  {styled(f'{label:<10}', 'dim')}{' · '.join(filter(None, parts))}"


def _replica_lines(snapshot: Snapshot) -> Iterator[str]:
    yield _row("namespace", snapshot.namespace)
    yield _row("server", snapshot.server)
    live, silent = snapshot.live, snapshot.silent
    none = styled("none", "yellow" if snapshot.needs_no_reaper else "red")
    yield _row("replicas", f"{len(live)} live" if live else none, f"{len(silent)} silent" if silent else "")
    for replica in live:
        does = "observes" if replica.observe else f"holds {replica.held} of"
        started = f"started {duration(max(0, snapshot.now_ms - replica.started_ms))} ago"
        drained = styled("drained", "yellow") if replica.id in snapshot.drained else ""
        yield _row("", styled(replica.id, "bold"), f"{does} {counted(replica.watched, 'group')}", started, drained)


def _pattern_lines(snapshot: Snapshot) -> Iterator[str]:
    for number, (pattern, counts) in enumerate(snapshot.patterns.items()):
        problems = (styled(f"{kind} {many}", "red") for kind, many in counts.problems.items())
        numbers = f"holds {counts.held} of {counts.watched} groups"
        yield _row("" if number else "patterns", styled(pattern or "(named)", "bold"), numbers, *problems)


def _group_lines(group: GroupState) -> Iterator[str]:
    yield _row(
        "recovery",
        group.mode or "no group settings",
        group.policy,
        f"visibility timeout {duration(group.visibility_ms)}" if group.visibility_ms else "",
        f"max deliveries {group.max_deliveries}" if group.max_deliveries else "",
        styled("paused", "yellow") if group.paused else "",
    )
    yield _row(
        "jobs",
        _ready(group.main),
        _pending(group.main),
        f"scheduled {group.scheduled}",
        f"quarantined {group.quarantined}, released {group.released}",
        f"dead letters {group.dead_letters}",
    )
    if group.retry.entries or group.policy == "retry-stream":
        yield _row("retries", _ready(group.retry), _pending(group.retry))
    if group.holder:
        yield _row("holder", *group.lease)
    elif not group.recovers_itself:
        yield _row("holder", "none", f"observed by {group.served_by}" if group.served_by else "")
    yield _row("consumers", str(group.main.consumers), f"recovered {group.recovered}")


def _ready(source: SourceState) -> str:
    waiting = source.ready if source.exists else Count(source.entries)
    age = f" (oldest {duration(source.oldest_ready_ms)})" if source.oldest_ready_ms is not None else ""
    return f"ready {waiting}{age}"


def _pending(source: SourceState) -> str:
    idle = f" (oldest idle {duration(source.oldest_pending_ms)})" if source.oldest_pending_ms is not None else ""
    return f"pending {source.pending}{idle}"
