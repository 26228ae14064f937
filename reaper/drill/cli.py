"""The commands ``reaper drill`` and ``reaper demo``."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from reaper.drill.act import Outcome
from reaper.drill.drill import InterruptedDrillError, Programme, perform
from reaper.drill.faults import DEFAULT_FAULTS, Fault, parse_fault
from reaper.drill.live import screen_at_hand
from reaper.drill.report import as_text
from reaper.drill.stage import RECOVERIES, DrillSettings, find_recovery
from reaper.drill.trace import Request, TokenTimes, generate_requests, plan_jobs, read_requests
from workers.protocol.errors import ConfigurationError, StreamReaperError

GENERATED_JOBS = 1_000
GENERATED_RATE = 70.0
"""Jobs a second; with the generated durations about 20 are in flight at a time."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_DEFAULTS = DrillSettings()
_TOKENS = TokenTimes()


@click.command()
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="CSV file: TIMESTAMP,ContextTokens,GeneratedTokens. Default: a generated one.",
)
@click.option(
    "--speedup",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Replay arrivals this many times faster.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Replay no more than this many jobs.")
@click.option(
    "--prefill-ms",
    type=click.FloatRange(min=0),
    default=_TOKENS.prefill / timedelta(milliseconds=1),
    show_default=True,
    help="Duration of a context token.",
)
@click.option(
    "--decode-ms",
    type=click.FloatRange(min=0),
    default=_TOKENS.decode / timedelta(milliseconds=1),
    show_default=True,
    help="Duration of a generated token.",
)
@click.option(
    "--workers",
    type=int,
    default=_DEFAULTS.workers,
    show_default=True,
    help="Worker processes; the last of two or more is a bare redis-py loop.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=_DEFAULTS.concurrency,
    show_default=True,
    help="Jobs that a worker runs at a time (the bare one: 1).",
)
@click.option("--reapers", type=int, default=_DEFAULTS.reapers, show_default=True, help="Reaper replicas.")
@click.option(
    "--visibility-timeout",
    type=click.FloatRange(min=0.1),
    default=_DEFAULTS.visibility_timeout.total_seconds(),
    show_default=True,
    help="Seconds.",
)
@click.option(
    "--lease-ttl",
    type=click.FloatRange(min=0.5),
    default=_DEFAULTS.lease_ttl.total_seconds(),
    show_default=True,
    help="Seconds.",
)
@click.option(
    "--recovery",
    type=click.Choice(list(RECOVERIES)),
    default="reaper",
    show_default=True,
    help="How stalled jobs come back.",
)
@click.option(
    "--redis-url",
    envvar="REAPER_REDIS_URL",
    help="A Redis to use; only keys of this drill are touched. Default: one of its own.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    help=f"KIND@SECONDS, repeatable; or none. Default: {' '.join(map(str, DEFAULT_FAULTS))}.",
)
@click.option(
    "--seed", type=int, default=_DEFAULTS.seed, show_default=True, help="Of the generated trace and the payloads."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to this file."
)
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the ledgers and logs of all processes in this folder.",
)
def drill(
    trace: Path | None,
    speedup: float,
    limit: int | None,
    prefill_ms: float,
    decode_ms: float,
    workers: int,
    concurrency: int,
    reapers: int,
    visibility_timeout: float,
    lease_ttl: float,
    recovery: str,
    redis_url: str | None,
    faults: tuple[str, ...],
    seed: int,
    json_file: Path | None,
    files: Path | None,
) -> None:
    """Break an installation on purpose, and account for every job.

    Starts workers and reapers as processes, replays a trace of jobs, kills and pauses processes at the given times,
    and prints a ledger. Exits 0 only if every job is settled or dead-lettered, the dead letters are the poison jobs
    that were put in, and a leader paused past its lease had its stale write refused. Timeouts are short, so that a
    drill ends while you watch; they are not for production.

    Faults: kill-worker (kill -9 of a worker with jobs in flight), kill-leader (kill -9 of the reaper that leads),
    pause-leader (the leader is stopped between deciding and writing, past its lease, and goes on), poison (a job that
    kills every worker that takes it).
    """
    with _errors_for_people():
        times = TokenTimes(timedelta(milliseconds=prefill_ms), timedelta(milliseconds=decode_ms))
        settings = DrillSettings(
            workers=workers,
            reapers=reapers,
            concurrency=concurrency,
            visibility_timeout=timedelta(seconds=visibility_timeout),
            lease_ttl=timedelta(seconds=lease_ttl),
            faults=_read_faults(faults),
            seed=seed,
            trace="generated" if trace is None else trace.name,
            speedup=speedup,
        )
        requests = _generate(seed, limit) if trace is None else read_requests(trace, limit=limit)
        jobs = plan_jobs(requests, times, speedup=speedup)
        programme = Programme(settings, jobs, [find_recovery(recovery)], redis_url, files)
        (outcome,) = _perform(programme)
        if json_file:
            _write_json(json_file, outcome.as_json())
    sys.exit(EXIT_FAILED if outcome.objections else 0)


@click.command()
@click.option("--redis-url", envvar="REAPER_REDIS_URL", help="A Redis to use. Default: one of its own.")
@click.option("--seed", type=int, default=_DEFAULTS.seed, show_default=True, help="Of the trace and the payloads.")
def demo(redis_url: str | None, seed: int) -> None:
    """Show what happens to the jobs of a killed worker, without recovery and with the reaper.

    Two acts on the same trace with the same faults, in less than a minute. Exits 0 only if the second act ends as
    promised (see: reaper drill --help).
    """
    with _errors_for_people():
        settings = DrillSettings(seed=seed)
        jobs = plan_jobs(_generate(seed, None), TokenTimes())
        programme = Programme(settings, jobs, [find_recovery("none"), find_recovery("reaper")], redis_url)
        without, with_reaper = _perform(programme)
        click.echo(
            f"\nWithout recovery {without.ledger.stuck} jobs were stuck for good; with the reaper "
            f"{with_reaper.ledger.stuck}."
        )
    sys.exit(EXIT_FAILED if with_reaper.objections else 0)


def _read_faults(texts: tuple[str, ...]) -> tuple[Fault, ...]:
    if texts == ("none",):
        return ()
    return tuple(parse_fault(text) for text in texts) or DEFAULT_FAULTS


def _generate(seed: int, limit: int | None) -> list[Request]:
    return generate_requests(seed, count=limit or GENERATED_JOBS, rate=GENERATED_RATE)


def _perform(programme: Programme) -> list[Outcome]:
    """Play, telling what is played and how each act ended."""
    screen = screen_at_hand()
    click.echo(_introduction(programme))
    return perform(programme, screen, opens=click.echo, closes=_close)


def _introduction(programme: Programme) -> str:
    settings, span = programme.settings, programme.jobs[-1].at.total_seconds()
    return (
        f"{len(programme.jobs)} jobs in {span:.0f} s (trace: {settings.trace}), {settings.workers} workers, "
        f"{settings.reapers} reapers.\n"
        f"visibility timeout {settings.visibility_timeout.total_seconds():g} s, lease TTL "
        f"{settings.lease_ttl.total_seconds():g} s, scan interval {settings.scan_interval.total_seconds():g} s, "
        f"max_deliveries {settings.max_deliveries}: short, so that you can watch. Not for production.\n"
        f"Faults: {' '.join(map(str, settings.faults)) or 'none'}."
    )


def _close(outcome: Outcome) -> None:
    recovery = outcome.stage.recovery
    table = as_text(outcome.ledger, by_reapers=recovery.by_reapers, started_at=outcome.started_at)
    click.echo(f"\nLedger, {recovery.title}:\n{table}")
    # Without recovery nothing is promised: what is stuck is what the act shows.
    for objection in outcome.objections if recovery.by_reapers else ():
        click.echo(f"  NOT AS PROMISED: {objection}.")


def _write_json(file: Path, report: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--json {file} cannot be written: {error.strerror}.") from error


@contextmanager
def _errors_for_people() -> Iterator[None]:
    """Print what went wrong in a sentence, and exit."""
    try:
        yield
    except InterruptedDrillError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_INTERRUPTED)
    except StreamReaperError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_FAILED)
