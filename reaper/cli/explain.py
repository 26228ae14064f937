"""``reaper explain JOB``: why a job is not done, and what happens next."""

import os

import click

from reaper.cli.options import Wanted, connected, find_pairs, json_option, operator_options, pair_options
from reaper.operations.explanation import Explanation, explain, visibility_of
from reaper.operations.job_search import DEFAULT_DEPTH, Place, find_job
from reaper.operations.snapshot import take_snapshot
from reaper.operations.words import duration
from reaper.settings import ReaperSettings
from workers.protocol.events import LifecycleEvent
from workers.protocol.messages import text
from workers.runtime.options import examples
from workers.runtime.printing import show, show_json, styled

UNKNOWN_EXIT = 1
_SHOWN = ("consumer", "delivery", "token", "reason", "error", "run_ms", "idle_ms", "new_entry", "dead_letter", "verb")


@click.command("explain", epilog=examples("reaper explain 1766000000000-0", "reaper explain order-4711 --json"))
@click.argument("job", metavar="JOB")
@pair_options
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=DEFAULT_DEPTH,
    show_default=True,
    help="Entries of each stream and journal to look at, newest first.",
)
@json_option
@operator_options
@click.pass_context
async def explain_command(
    context: click.Context, /, job: str, pair: Wanted, depth: int, machine: bool, settings: ReaperSettings
) -> None:
    """Say where JOB is, who has it, what happens next and when, with its journal.

    JOB is a job ID, or an entry ID it has or had. Exit code 0 found, 1 nothing is known of it, 3 unreachable.
    """
    found = await look_for(settings, text(os.fsencode(job)), pair, depth)  # bytes that are no text, as IDs are shown
    told = [one for one in found if one.job.is_known]
    if machine:
        show_json([one.as_json() for one in told])
    elif told:
        for number, one in enumerate(told):
            show(*[""][:number], *explanation_lines(one))
    else:
        show(_nothing_found(job, found, depth), err=True)
    context.exit(0 if told else UNKNOWN_EXIT)


async def look_for(settings: ReaperSettings, job: str, pair: Wanted, depth: int) -> list[Explanation]:
    """Explain a job in every pair that may hold it."""
    async with connected(settings, pair) as (client, server):
        pairs = await find_pairs(client, settings, pair)
        snapshot = await take_snapshot(client, settings.namespace_keys, settings.watched, server, pairs)
        return [
            explain(await find_job(client, keys, job, depth=depth), state, snapshot)
            for keys in pairs
            if (state := snapshot.group(keys.pair))
        ]


def _nothing_found(job: str, found: list[Explanation], depth: int) -> str:
    where = ", ".join(one.group.pair for one in found) or "no known pair"
    cut = (
        "" if all(one.job.complete for one in found) else f"; only the newest {depth} entries were looked at (--depth)"
    )
    return f"job {job}: nothing is known of it in {where}{cut}"


def explanation_lines(told: Explanation) -> list[str]:
    """Return the screen for one group."""
    job, group = told.job, told.group
    lines = [f"{styled(f'job {job.job_id or job.wanted}', 'bold')}  {group.pair}  {job.place}"]
    lines += [_row(name, value) for name, value in _facts(told) if value]
    lines.append(_row("next", told.next))
    lines += [_row("but", styled(obstacle, "yellow")) for obstacle in told.obstacles]
    if job.events:
        lines += ["", "  journal"]
        lines += [f"    {_event_line(event, told.now_ms)}" for event in job.events]
    return lines


def _row(name: str, value: str) -> str:
    return f"  {styled(f'{name:<11}', 'dim')}{value}"


def _facts(told: Explanation) -> list[tuple[str, str]]:
    job, group = told.job, told.group
    pending = job.place is Place.PENDING
    return [
        ("where", f"{job.source} {job.entry_id}".strip()),
        ("owner", job.owner if pending else ""),
        (
            "idle",
            f"{duration(job.idle_ms)} of {duration(visibility_of(job, group))}" if pending and job.idle_ms >= 0 else "",
        ),
        ("deliveries", f"{told.deliveries} of {told.max_deliveries}" if job.place is not Place.SETTLED else ""),
        ("generation", str(job.generation) if job.generation else ""),
        ("age", duration(max(0, told.now_ms - job.first_ms)) if job.first_ms else ""),
        ("consumers", ", ".join(job.consumers)),
        ("reason", f"{job.reason}: {job.error}" if job.error else job.reason),
        ("recovery", group.mode and f"{group.mode}, {group.policy}"),
        ("leader", told.leader and f"{told.leader} (term {told.token})"),
    ]


def _event_line(event: LifecycleEvent, now_ms: int) -> str:
    facts = (f"{name}={event.data[name]}" for name in _SHOWN if event.data.get(name) not in (None, ""))
    return f"{duration(max(0, now_ms - event.at_ms)):>8} ago  {event.event:<13} {' '.join(facts)}".rstrip()
