"""``reaper dead-letters redrive`` and ``reaper groups requeue``."""

import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import click
from redis.asyncio import Redis

from reaper.cli.options import (
    all_option,
    connected,
    group_argument,
    ids_argument,
    journaling_options,
    json_option,
    reason_option,
)
from reaper.operations.dead_letters import Selection, check_ids, choose, select
from reaper.operations.groups import check_exists
from reaper.operations.lost_deliveries import Entry, forget_count, read_journal
from reaper.operations.ready_again import MAX_GENERATION, How, Outcome, Result
from reaper.operations.ready_again import redrive as redrive_letters
from reaper.operations.ready_again import requeue as requeue_entries
from reaper.settings import ReaperSettings
from workers.protocol.calls.refusals import explained
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.clock import server_ms
from workers.runtime.options import DurationType, help_end, keep_for_error
from workers.runtime.printing import show, show_json

DAY_S = 86_400
dry_run_option = click.option("--dry-run", is_flag=True, help="Print the jobs that would be ready, and write nothing.")


@click.command(
    epilog=help_end(
        "reaper dead-letters redrive orders/billing 1766000000000-0",
        "reaper dead-letters redrive orders/billing --reason max_deliveries --dry-run",
        "reaper dead-letters redrive orders/billing --all --rate 50 -o json",
        ok="all selected jobs are ready, also if there are none",
        no="a job was not redriven, or the group does not exist",
    ),
)
@group_argument
@ids_argument
@reason_option
@all_option
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Redrive at most this many jobs per second.")
@dry_run_option
@click.option("--force", is_flag=True, help=f"Also redrive jobs that were redriven {MAX_GENERATION} times already.")
@json_option
@journaling_options
async def redrive(
    keys: GroupKeys,
    ids: tuple[str, ...],
    reason: str | None,
    everything: bool,
    rate: float | None,
    dry_run: bool,
    force: bool,
    machine: bool,
    settings: ReaperSettings,
) -> bool:
    """Make dead-lettered jobs ready again.

    Select them by ID, by --reason, or with --all. Each job continues as its next generation, with a new count of
    deliveries.
    """
    how = replace(How.of(settings, dry_run=dry_run), is_forced=force, rate=rate)
    what = choose(ids, reason=reason, everything=everything)
    async with connected(settings, keys) as (client, _):
        await check_exists(client, keys)
        results = redrive_letters(client, keys, _selected(client, keys, what), how)
        counts = await _print(results, keys, ("dead letter", "redriven"), dry_run, machine, every=dry_run or bool(ids))
    return set(counts) <= {Outcome.DONE}


async def _selected(client: Redis, keys: GroupKeys, what: Selection) -> AsyncIterator[str]:
    """Yield the IDs to send. Named IDs are sent even if they do not exist, so that each has a result."""
    for entry_id in what.ids:
        yield entry_id
    if not what.ids:
        async for letter in select(client, keys, what):
            yield letter.entry_id


@click.command(
    epilog=help_end(
        "reaper groups requeue orders/billing --lost --dry-run",
        "reaper groups requeue orders/billing --lost --since 1h",
        "reaper groups requeue orders/billing 1766000000000-0 -o json",
        ok="all lost entries are ready, also if there are none",
        no="an entry cannot be copied, or the group does not exist",
    )
)
@group_argument
@ids_argument
@click.option("--lost", is_flag=True, help="All entries that the journal reports as lost.")
@click.option("--since", type=DurationType(), default=DAY_S, help="Age of the oldest journal entry.  [default: 24h]")
@dry_run_option
@json_option
@journaling_options
async def requeue(
    keys: GroupKeys,
    ids: tuple[str, ...],
    lost: bool,
    since: float,
    dry_run: bool,
    machine: bool,
    settings: ReaperSettings,
) -> bool:
    """Make lost deliveries ready again.

    The reaper reports a delivery as lost if a third party deleted its consumer or its group. Select them by ID, or
    with --lost. Each becomes a copy at the end of the stream. Pending and settled entries are skipped.
    """
    if bool(ids) is lost:
        raise ConfigurationError("requeue needs either entry IDs or --lost. Name one of them.")
    named = [Entry(entry_id) for entry_id in check_ids(ids)]
    async with connected(settings, keys) as (client, _):
        await check_exists(client, keys)
        journal = await read_journal(client, keys, await server_ms(client) - int(since * 1000))
        entries = list(journal.lost) if lost else named
        results = requeue_entries(client, keys, entries, journal.ended, How.of(settings, dry_run=dry_run))
        counts = await _print(results, keys, ("delivery", "requeued"), dry_run, machine)
        if lost and not dry_run:
            await forget_count(client, keys)
    return not counts[Outcome.UNDELIVERABLE]


# --- results ------------------------------------------------------------------------------------------------


async def _print(
    results: AsyncIterator[Result],
    keys: GroupKeys,
    action: tuple[str, str],
    dry_run: bool,
    machine: bool,
    *,
    every: bool = True,
) -> Counter[Outcome]:
    """Print the results as they come, then a summary, also after a failure or Ctrl-C. Return the counts.

    ``action``: for example ``("dead letter", "redriven")``. Without ``every``, people do not see a line for each job
    that is ready.
    """
    noun, verb = action
    counts: Counter[Outcome] = Counter()
    document: dict[str, Any] = {"group": keys.pair, "dry_run": dry_run, "done": 0, "results": []}
    try:
        async for result in results:
            counts[result.outcome] += 1
            document["done"] = counts[Outcome.DONE]
            if machine:
                facts = {"id": result.entry_id, "outcome": result.outcome, "job": result.job_id}
                document["results"].append({**facts, "detail": result.detail})
            elif every or result.outcome is not Outcome.DONE:
                show(_line(result, verb, dry_run))
    except Exception:
        if machine and counts:
            keep_for_error(document)
        raise
    finally:
        would_be = "would be " if dry_run else ""
        others = [f"{number} {outcome}" for outcome, number in counts.items() if outcome is not Outcome.DONE]
        if not machine:
            show(", ".join([f"{keys.pair}: {counted(counts[Outcome.DONE], noun)} {would_be}{verb}", *others]))
        elif not isinstance(sys.exception(), Exception):
            show_json(document)
    return counts


def _line(result: Result, verb: str, dry_run: bool) -> str:
    texts = {
        Outcome.DONE: f"would be {verb}" if dry_run else f"{verb} as {result.detail}",
        Outcome.MISSING: "skipped: it does not exist",
        Outcome.LOOPED: f"skipped: it was redriven {result.detail} times already (--force redrives it)",
        Outcome.UNDELIVERABLE: f"skipped: it cannot be copied: {explained(result.detail)}",
        Outcome.PENDING: "skipped: it is pending",
        Outcome.READY: "skipped: it is ready, and not delivered yet",
        Outcome.SETTLED: "skipped: the journal says that it was settled or requeued",
        Outcome.UNKNOWN: f"probably {verb}: a reply was lost, and the dead letter no longer exists",
    }
    job = f"  job {result.job_id}" if result.job_id else ""
    return f"{result.entry_id}{job}  {texts[result.outcome]}"
