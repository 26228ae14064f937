"""``reaper explain JOB``: the place of a job, and its next step."""

import os

import click

from reaper.cli.options import connected, groups_options, json_option, known_or_named
from reaper.operations.durations import duration
from reaper.operations.explanation import Explanation
from reaper.operations.job_search import DEFAULT_DEPTH, FoundJob, Place, find_job
from reaper.operations.snapshot import take_snapshot
from reaper.settings import ReaperSettings
from workers.protocol.errors import NotPossibleError
from workers.protocol.events import LifecycleEvent
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import text
from workers.runtime.options import group_option, help_end
from workers.runtime.printing import show, show_json, styled

_SHOWN = ("consumer", "delivery", "token", "reason", "error", "run_ms", "idle_ms", "new_entry", "dead_letter", "verb")


@click.command(
    "explain",
    epilog=help_end(
        "reaper explain 1766000000000-0",
        "reaper explain order-4711 --group orders/billing -o json",
        ok="the job was found",
        no="the job was not found, or the group does not exist",
    ),
)
@click.argument("job", metavar="JOB")
@group_option
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=DEFAULT_DEPTH,
    show_default=True,
    help="Entries of each stream and journal to search, newest first.",
)
@json_option
@groups_options
async def explain_command(
    job: str, keys: GroupKeys | None, depth: int, machine: bool, settings: ReaperSettings
) -> None:
    """Show where a job is, and its next step.

    JOB is a job ID or the ID of a current or former entry of the job. The output contains the job's journal.
    """
    wanted = text(os.fsencode(job))  # bytes that are not UTF-8 are escaped as in IDs
    async with connected(settings) as (client, server):
        groups = await known_or_named(client, settings, keys)
        searched = [await find_job(client, one, wanted, depth=depth) for one in groups]
        found = [one for one in searched if one.is_known]
        if not found:
            raise NotPossibleError(_nothing_found(job, searched, depth))
        shown = [one.keys for one in found]
        snapshot = await take_snapshot(client, settings.namespace_keys, settings.groups, server, shown)
    states = {state.group: state for state in snapshot.groups}
    explanations = [Explanation(one, states[one.keys.name], snapshot) for one in found]
    if machine:
        show_json([one.as_json() for one in explanations])
        return
    for number, one in enumerate(explanations):
        show(*[""][:number], *_lines(one))


def _nothing_found(job: str, searched: list[FoundJob], depth: int) -> str:
    if not searched:
        return f"job {job!r} was not found: no group is known. Name one with --group."
    complete = all(one.complete for one in searched)
    part, advice = ("", "") if complete else (f"the newest {depth} entries of ", ", raise --depth")
    where = part + ", ".join(one.keys.name for one in searched)
    return f"job {job!r} was not found in {where}. Check the ID{advice}, or name another group with --group."


def _lines(one: Explanation) -> list[str]:
    """Return the screen for one group."""
    job, now_ms = one.job, one.snapshot.now_ms
    is_pending = job.place is Place.PENDING
    facts = {
        "where": f"{job.source} {job.entry_id}".strip(),
        "owner": job.owner if is_pending else "",
        "idle": f"{duration(max(0, job.idle_ms))} of {duration(one.visibility_ms)}" if is_pending else "",
        "deliveries": f"{one.deliveries} of {one.max_deliveries}" if job.place is not Place.SETTLED else "",
        "generation": str(job.generation or ""),
        "age": duration(max(0, now_ms - job.first_ms)) if job.first_ms else "",
        "reason": f"{job.reason}: {job.error}" if job.error else job.reason,
        "next": one.next_step()[1],
        "holder": ", ".join(one.group.lease),
    }
    lines = [f"{styled(f'job {job.job_id or job.wanted}', 'bold')}  {one.group.group}  {job.place}"]
    lines += [_row(name, value) for name, value in facts.items() if value]
    lines += [_row("obstacle", styled(obstacle, "yellow")) for obstacle in one.obstacles()]
    if job.events:
        lines += ["", "  journal", *(f"    {_event_line(event, now_ms)}" for event in job.events)]
    return lines


def _row(name: str, value: str) -> str:
    return f"  {styled(f'{name:<11}', 'dim')}{value}"


def _event_line(event: LifecycleEvent, now_ms: int) -> str:
    facts = (f"{name}={event.data[name]}" for name in _SHOWN if event.data.get(name) not in (None, ""))
    return f"{duration(max(0, now_ms - event.at_ms)):>8} ago  {event.event:<13} {' '.join(facts)}".rstrip()
