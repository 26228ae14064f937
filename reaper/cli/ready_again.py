"""``reaper dead-letters redrive`` and ``reaper groups requeue``."""

from collections import Counter
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import click

from reaper.cli.options import (
    all_option,
    connected,
    group_argument,
    group_options,
    ids_argument,
    json_option,
    reason_option,
)
from reaper.operations.dead_letters import check_ids, choose, select
from reaper.operations.groups import check_exists
from reaper.operations.ready_again import MAX_GENERATION, Outcome, ReadyAgain, Result
from reaper.settings import ReaperSettings
from workers.protocol.calls.declined import explained
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.clock import server_ms
from workers.runtime.options import DurationType, help_end
from workers.runtime.printing import show, show_json
from workers.runtime.quantities import seconds_in

dry_run_option = click.option("--dry-run", is_flag=True, help="Print the jobs that would be ready, and write nothing.")


def _per_second(_context: click.Context, _option: click.Parameter, rate: str | None) -> float | None:
    number, _, unit = (rate or "").partition("/")
    jobs, seconds = seconds_in(f"{number} s"), seconds_in(f"1{unit or 's'}")
    if rate is not None and not (jobs and seconds and 0 < jobs < inf):
        raise click.BadParameter(f"{rate!r} is not a rate, such as 50, 50/s or 1000/h.")
    return jobs / seconds if jobs and seconds else None


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
@click.option("--rate", metavar="RATE", callback=_per_second, help="The most jobs per time, as 50/s or 1000/h.")
@dry_run_option
@click.option("--force", is_flag=True, help=f"Also redrive jobs that were redriven {MAX_GENERATION} times already.")
@json_option
@group_options
async def redrive(
    keys: GroupKeys,
    rate: float | None,
    dry_run: bool,
    force: bool,
    machine: bool,
    settings: ReaperSettings,
    **selected: Any,
) -> bool:
    """Make dead-lettered jobs ready again.

    Select them by ID, by --reason, or with --all. Each job continues as its next generation, with a new count of
    deliveries.
    """
    selection = choose(**selected)
    async with connected(settings) as (client, _):
        await check_exists(client, keys)
        # Named IDs are sent even if they do not exist, so that each has a result.
        letters = selection.ids or [letter.id async for letter in select(client, keys, selection)]
        ready_again = ReadyAgain(client, keys, settings.redelivery, settings.journal_limit, dry_run)
        results = ready_again.redrive(letters, force=force, rate=rate)
        shows_all = dry_run or bool(selection.ids)
        counts = await _print(ready_again, results, ("dead letter", "redriven"), machine, shows_all=shows_all)
    return set(counts) <= {Outcome.DONE}


@click.command(
    epilog=help_end(
        "reaper groups requeue orders/billing --lost --dry-run",
        "reaper groups requeue orders/billing --lost --since 1h",
        "reaper groups requeue orders/billing 1766000000000-0 -o json",
        ok="all selected entries are ready, settled or pending, also if there are none",
        no="an entry cannot be copied or does not exist, or the group does not exist",
    )
)
@group_argument
@ids_argument
@click.option("--lost", is_flag=True, help="All entries that the journal reports as lost.")
@click.option(
    "--since", type=DurationType(), default="24h", show_default=True, help="How far back to read the journal."
)
@dry_run_option
@json_option
@group_options
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
    named = check_ids(ids)
    async with connected(settings) as (client, _):
        await check_exists(client, keys)
        ready_again = ReadyAgain(client, keys, settings.redelivery, settings.journal_limit, dry_run)
        results = ready_again.requeue(named, await server_ms(client) - int(since * 1000))
        counts = await _print(ready_again, results, ("delivery", "requeued"), machine)
    return not counts[Outcome.UNDELIVERABLE] + counts[Outcome.MISSING]


# --- results ------------------------------------------------------------------------------------------------


async def _print(
    run: ReadyAgain, results: AsyncIterator[Result], action: tuple[str, str], machine: bool, *, shows_all: bool = True
) -> Counter[Outcome]:
    """Print the results as they come, then a summary, which people see also after a failure. Return the counts.

    ``action`` is a noun and a verb, as ``("dead letter", "redriven")``. Without ``shows_all``, people see no line for
    a job that is ready.
    """
    noun, verb = action
    would_be = "would be " if run.dry_run else ""
    found: list[Result] = []
    counts: Counter[Outcome] = Counter()
    try:
        async for result in results:
            found.append(result)
            counts[result.outcome] += 1
            if not machine and (shows_all or result.outcome is not Outcome.DONE):
                show(_line(result, verb, run.dry_run))
    finally:
        others = [f"{number} {outcome}" for outcome, number in counts.items() if outcome is not Outcome.DONE]
        if not machine:
            show(", ".join([f"{run.keys.name}: {counted(counts[Outcome.DONE], noun)} {would_be}{verb}", *others]))
    if machine:
        facts = {"group": run.keys.name, "dry_run": run.dry_run, "done": counts[Outcome.DONE]}
        show_json({**facts, "results": [result._asdict() for result in found]})
    return counts


def _line(result: Result, verb: str, dry_run: bool) -> str:
    texts = {
        Outcome.DONE: f"would be {verb}" if dry_run else f"{verb} as {result.detail}",
        Outcome.MISSING: "skipped: it does not exist",
        Outcome.LOOPED: f"skipped: it was redriven {result.detail} times already (--force redrives it)",
        Outcome.UNDELIVERABLE: f"skipped: it cannot be copied: {explained(result.detail)}",
        Outcome.PENDING: "skipped: it is pending",
        Outcome.READY: "skipped: it is ready, and not delivered yet",
        Outcome.SETTLED: "skipped: it was settled or requeued before",
        Outcome.UNKNOWN: f"probably {verb}: a reply was lost, and the dead letter no longer exists",
    }
    job = f"  job {result.job}" if result.job else ""
    return f"{result.id}{job}  {texts[result.outcome]}"
