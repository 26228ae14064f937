"""``reaper dead-letters redrive``."""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import click
from redis.asyncio import Redis

from reaper.cli.options import Wanted, connected, find_pair, json_option, operator_options, pair_options
from reaper.cli.selection import all_option, ids_argument, read_rate, reason_option
from reaper.operations.dead_letters import Selection, choose, select
from reaper.operations.redrive import DEFAULT_MAX_GENERATION, Redrive, Redriven, RedriveOutcome, redrive, redrive_as_set
from reaper.settings import ReaperSettings
from workers.protocol.calls.refusals import explained
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.options import examples, tell_with_error
from workers.runtime.printing import show, show_json
from workers.telemetry.setup import exported

INCOMPLETE_EXIT = 1
"""Something that was asked for was not done; the output says what."""


@click.command(
    "redrive",
    epilog=examples(
        "reaper dead-letters redrive 1766000000000-0",
        "reaper dead-letters redrive --reason max_deliveries --dry-run",
        "reaper dead-letters redrive --all --rate 50/s --json",
    ),
)
@ids_argument
@pair_options
@reason_option
@all_option
@click.option("--rate", metavar="N/s", callback=lambda _c, _p, value: read_rate(value), help="At most N a second.")
@click.option("--dry-run", is_flag=True, help="Say what would be redriven; write nothing.")
@click.option(
    "--max-generation",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_GENERATION,
    show_default=True,
    help="Loop guard: leave jobs that were redriven this often already.",
)
@click.option("--force", is_flag=True, help="Redrive without the loop guard.")
@json_option
@operator_options
@click.pass_context
async def redrive_dead_letters(
    context: click.Context,
    /,
    ids: tuple[str, ...],
    pair: Wanted,
    reason: str | None,
    everything: bool,
    rate: float | None,
    dry_run: bool,
    max_generation: int,
    force: bool,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Make dead letters ready again, by ID, by --reason, or --all: a new generation of each job.

    Exit code 0 all were redriven, 1 not all could be, 2 not possible. Traced jobs' redrives are exported where the
    environment asks for telemetry (OTEL_EXPORTER_OTLP_ENDPOINT).
    """
    how = replace(
        redrive_as_set(settings), max_generation=None if force else max_generation, dry_run=dry_run, rate=rate
    )
    what = choose(ids, reason=reason, everything=everything)
    with exported("reaper"):
        counts = await _redrive(settings, pair, what, how, machine)
    complete = set(counts) <= {RedriveOutcome.REDRIVEN}
    context.exit(0 if complete else INCOMPLETE_EXIT)


async def _redrive(
    settings: ReaperSettings, pair: Wanted, what: Selection, how: Redrive, machine: bool
) -> Counter[RedriveOutcome]:
    counts: Counter[RedriveOutcome] = Counter()
    results: list[Redriven] = []
    async with connected(settings, pair) as (client, _):
        keys = await find_pair(client, settings, pair)
        try:
            async for result in redrive(client, keys, _ids(client, keys, what), how):
                counts[result.outcome] += 1
                if machine:
                    results.append(result)
                elif how.dry_run or what.ids or result.outcome is not RedriveOutcome.REDRIVEN:
                    show(_result_line(result, how))
        except Exception:
            if machine and results:
                tell_with_error(_redrive_json(results, how))
            raise
        finally:  # what was done before a failure, or Ctrl-C, is told all the same
            if not machine:
                show(_summary(counts, keys, how))
            elif not isinstance(sys.exception(), Exception):
                show_json(_redrive_json(results, how))
    return counts


async def _ids(client: Redis, keys: GroupKeys, what: Selection) -> AsyncIterator[str]:
    """Yield the IDs to send: those that were named even if they are not there, so that each has a result."""
    if what.ids:
        for entry_id in what.ids:
            yield entry_id
        return
    async for letter in select(client, keys, what):
        yield letter.entry_id


def _result_line(result: Redriven, how: Redrive) -> str:
    texts = {
        RedriveOutcome.REDRIVEN: f"would go to {result.target}" if how.dry_run else f"ready as {result.detail}",
        RedriveOutcome.GONE: "is not there",
        RedriveOutcome.LOOPED: f"left: generation {result.detail}, it dies each time "
        "(--force redrives it all the same)",
        RedriveOutcome.HELD: f"left: cannot be copied: {explained(result.detail)}",
        RedriveOutcome.UNKNOWN: "unknown: a reply was lost; it is not there any more, so most likely it is ready",
    }
    job = f"  job {result.job_id}" if result.job_id else ""
    return f"{result.entry_id}{job}  {texts[result.outcome]}"


def _summary(counts: Counter[RedriveOutcome], keys: GroupKeys, how: Redrive) -> str:
    done = counts[RedriveOutcome.REDRIVEN]
    others = [one for one in RedriveOutcome if one is not RedriveOutcome.REDRIVEN and counts[one]]
    told = f"{keys.pair}: {counted(done, 'dead letter')} {'would be ' if how.dry_run else ''}redriven"
    return ", ".join([told, *(f"{counts[one]} {one.name.lower()}" for one in others)])


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
