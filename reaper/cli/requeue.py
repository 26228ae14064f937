"""``reaper groups requeue``."""

from collections import Counter

import click

from reaper.cli.options import connected, group_argument, ids_argument, journaling_options, json_option
from reaper.operations.groups import check_exists
from reaper.operations.requeue import Requeue, Requeued, RequeueOutcome, entries_of, forget_count, read_journal
from reaper.operations.requeue import requeue as requeue_entries
from reaper.settings import ReaperSettings
from workers.protocol.calls.refusals import explained
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.clock import server_ms
from workers.runtime.options import NEGATIVE_EXIT, DurationType, help_end
from workers.runtime.printing import show, show_json

DAY_S = 86_400


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
@click.option("--dry-run", is_flag=True, help="Print the entries that would be requeued, and write nothing.")
@json_option
@journaling_options
@click.pass_context
async def requeue(
    context: click.Context,
    /,
    keys: GroupKeys,
    ids: tuple[str, ...],
    lost: bool,
    since: float,
    dry_run: bool,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Make lost deliveries ready again.

    The reaper reports a delivery as lost if a third party deleted its consumer or its group. Select them by ID, or
    with --lost. Each becomes a copy at the end of the stream. Pending and settled entries are skipped.
    """
    if bool(ids) is lost:
        raise ConfigurationError("requeue needs either entry IDs or --lost. Name one of them.")
    how = Requeue(settings.redelivery, settings.journal_limit, dry_run)
    results = []
    async with connected(settings, keys) as (client, _):
        await check_exists(client, keys)
        told = await read_journal(client, keys, await server_ms(client) - int(since * 1000))
        entries = list(told.lost) if lost else entries_of(ids)
        async for result in requeue_entries(client, keys, entries, told.ended, how):
            results.append(result)
            if not machine:
                show(_line(result, dry_run))
        if lost and not dry_run:
            await forget_count(client, keys)
    counts = Counter(result.outcome for result in results)
    if machine:
        show_json({"group": keys.pair, "dry_run": dry_run, "results": [_as_json(result) for result in results]})
    else:
        done = counted(counts[RequeueOutcome.REQUEUED], "delivery")
        show(f"{keys.pair}: {done} {'would be ' if dry_run else ''}requeued")
    context.exit(NEGATIVE_EXIT if counts[RequeueOutcome.HELD] else 0)


def _line(result: Requeued, dry_run: bool) -> str:
    texts = {
        RequeueOutcome.GONE: "left: the entry is not there",
        RequeueOutcome.SETTLED: "left: the journal says that it was settled or requeued",
        RequeueOutcome.REQUEUED: "would be requeued" if dry_run else f"requeued as {result.detail}",
        RequeueOutcome.PENDING: "left: it is pending",
        RequeueOutcome.READY: "left: it is ready, and not delivered yet",
        RequeueOutcome.HELD: f"left: it cannot be copied: {explained(result.detail)}",
    }
    job = f"  job {result.job_id}" if result.job_id else ""
    return f"{result.entry_id}{job}  {texts[result.outcome]}"


def _as_json(result: Requeued) -> dict[str, str]:
    return {
        "id": result.entry_id,
        "outcome": result.outcome.name.lower(),
        "job": result.job_id,
        "detail": result.detail,
    }
