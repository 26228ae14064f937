"""``reaper dead-letters redrive``."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
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
from reaper.operations.dead_letters import Selection, choose, select
from reaper.operations.groups import check_exists
from reaper.operations.redrive import DEFAULT_MAX_GENERATION, Redrive, Redriven, RedriveOutcome, redrive, redrive_as_set
from reaper.settings import ReaperSettings
from workers.protocol.calls.refusals import explained
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.options import NEGATIVE_EXIT, help_end, keep_for_error
from workers.runtime.printing import show, show_json
from workers.telemetry.setup import exported


@click.command(
    "redrive",
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
@click.option("--dry-run", is_flag=True, help="Print the jobs that would be redriven, and write nothing.")
@click.option(
    "--max-generation",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_GENERATION,
    show_default=True,
    help="Skip jobs that were redriven this often already.",
)
@click.option("--force", is_flag=True, help="Redrive jobs of every generation.")
@json_option
@journaling_options
@click.pass_context
async def redrive_dead_letters(
    context: click.Context,
    /,
    keys: GroupKeys,
    ids: tuple[str, ...],
    reason: str | None,
    everything: bool,
    rate: float | None,
    dry_run: bool,
    max_generation: int,
    force: bool,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Make dead-lettered jobs ready again.

    Select them by ID, by --reason, or with --all. Each job continues as its next generation, with a new count of
    deliveries. Traces are exported if OTEL_EXPORTER_OTLP_ENDPOINT is set.
    """
    how = replace(
        redrive_as_set(settings), max_generation=None if force else max_generation, dry_run=dry_run, rate=rate
    )
    what = choose(ids, reason=reason, everything=everything)
    with exported("reaper"):
        counts = await _redrive(settings, keys, what, how, machine)
    complete = set(counts) <= {RedriveOutcome.REDRIVEN}
    context.exit(0 if complete else NEGATIVE_EXIT)


async def _redrive(
    settings: ReaperSettings, keys: GroupKeys, what: Selection, how: Redrive, machine: bool
) -> Counter[RedriveOutcome]:
    counts: Counter[RedriveOutcome] = Counter()
    results: list[Redriven] = []
    async with connected(settings, keys) as (client, _):
        await check_exists(client, keys)
        try:
            async for result in redrive(client, keys, _ids(client, keys, what), how):
                counts[result.outcome] += 1
                if machine:
                    results.append(result)
                elif how.dry_run or what.ids or result.outcome is not RedriveOutcome.REDRIVEN:
                    show(_result_line(result, how))
        except Exception:
            if machine and results:
                keep_for_error(_redrive_json(results, how))
            raise
        finally:  # also after a failure or Ctrl-C, the results so far are printed
            if not machine:
                show(_summary(counts, keys, how))
            elif not isinstance(sys.exception(), Exception):
                show_json(_redrive_json(results, how))
    return counts


async def _ids(client: Redis, keys: GroupKeys, what: Selection) -> AsyncIterator[str]:
    """Yield the IDs to send. Named IDs are sent even if they do not exist, so that each has a result."""
    if what.ids:
        for entry_id in what.ids:
            yield entry_id
        return
    async for letter in select(client, keys, what):
        yield letter.entry_id


def _result_line(result: Redriven, how: Redrive) -> str:
    texts = {
        RedriveOutcome.REDRIVEN: f"would go to {result.target}" if how.dry_run else f"ready as {result.detail}",
        RedriveOutcome.MISSING: "does not exist",
        RedriveOutcome.LOOPED: f"skipped: it was redriven {result.detail} times already (--force redrives it)",
        RedriveOutcome.UNDELIVERABLE: f"skipped: cannot be copied: {explained(result.detail)}",
        RedriveOutcome.UNKNOWN: "probably redriven: a reply was lost, and the dead letter no longer exists",
    }
    job = f"  job {result.job_id}" if result.job_id else ""
    return f"{result.entry_id}{job}  {texts[result.outcome]}"


def _summary(counts: Counter[RedriveOutcome], keys: GroupKeys, how: Redrive) -> str:
    done = counts[RedriveOutcome.REDRIVEN]
    others = [one for one in RedriveOutcome if one is not RedriveOutcome.REDRIVEN and counts[one]]
    redriven = f"{keys.pair}: {counted(done, 'dead letter')} {'would be ' if how.dry_run else ''}redriven"
    return ", ".join([redriven, *(f"{counts[one]} {one.name.lower()}" for one in others)])


def _redrive_json(results: Sequence[Redriven], how: Redrive) -> dict[str, Any]:
    counts = Counter(result.outcome for result in results)
    return {
        "dry_run": how.dry_run,
        **{one.name.lower(): counts[one] for one in RedriveOutcome if one is not RedriveOutcome.PUT_OFF},
        "results": [
            {
                "id": result.entry_id,
                "outcome": result.outcome.name.lower(),
                "job": result.job_id,
                "target": result.target,
                "detail": result.detail,
            }
            for result in results
        ],
    }
