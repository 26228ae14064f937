"""``reaper requeue``."""

from collections import Counter

import click

from reaper.cli.groups import group_argument, stream_option
from reaper.cli.options import Wanted, connected, find_pair, json_option, operator_options
from reaper.cli.selection import ids_argument, read_age_ms
from reaper.operations.requeue import Requeue, Requeued, RequeueOutcome, entries_of, forget_count, read_journal
from reaper.operations.requeue import requeue as requeue_entries
from reaper.settings import ReaperSettings
from workers.protocol.calls import Journal
from workers.protocol.calls.refusals import explained
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import counted
from workers.runtime.clock import server_ms
from workers.runtime.options import examples
from workers.runtime.printing import show, show_json

INCOMPLETE_EXIT = 1


@click.command(
    epilog=examples(
        "reaper requeue billing --lost --dry-run",
        "reaper requeue billing --lost --since 1h",
        "reaper requeue billing 1766000000000-0 --json",
    )
)
@group_argument
@ids_argument
@stream_option
@click.option("--lost", is_flag=True, help="All entries that the journal reports as lost.")
@click.option("--since", metavar="AGE", default="24h", show_default=True, help="Read the journal from then on.")
@click.option("--dry-run", is_flag=True, help="Say what would be requeued; write nothing.")
@json_option
@operator_options
@click.pass_context
async def requeue(
    context: click.Context,
    /,
    group: str,
    ids: tuple[str, ...],
    stream: str | None,
    lost: bool,
    since: str,
    dry_run: bool,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Give lost deliveries of GROUP back, by ID or --lost.

    The leader reports a delivery as lost (event lost_delivery) when somebody deleted its consumer or the group. Each
    becomes a copy at the end of the stream. Entries that are pending or settled are left alone.

    Exit code 0 done, 1 not all could be copied, 2 not possible.
    """
    if bool(ids) is lost:
        raise ConfigurationError("which deliveries: name entry IDs, or --lost, and not both.")
    pair, age_ms = Wanted(stream, group), read_age_ms(since, "--since")
    how = Requeue(settings.redelivery, Journal.at(settings.journal, settings.journal_maxlen), dry_run)
    results = []
    async with connected(settings, pair) as (client, _):
        keys = await find_pair(client, settings, pair)
        told = await read_journal(client, keys, await server_ms(client) - age_ms)
        entries = list(told.lost) if lost else entries_of(ids)
        async for result in requeue_entries(client, keys, entries, told.ended, how):
            results.append(result)
            if not machine:
                show(_line(result, dry_run))
        if lost and not dry_run:
            await forget_count(client, keys)
    counts = Counter(result.outcome for result in results)
    if machine:
        show_json({"pair": keys.pair, "dry_run": dry_run, "results": [_as_json(result) for result in results]})
    else:
        done = counted(counts[RequeueOutcome.REQUEUED], "delivery")
        show(f"{keys.pair}: {done} {'would be ' if dry_run else ''}requeued")
    context.exit(INCOMPLETE_EXIT if counts[RequeueOutcome.HELD] else 0)


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
