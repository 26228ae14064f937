"""The commands ``reaper drill`` and ``reaper demo``."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from reaper.drill.act import Outcome
from reaper.drill.drill import InterruptedDrillError, Programme, perform
from reaper.drill.faults import DEFAULT_FAULTS, DEMO_FAULTS, Fault, parse_fault
from reaper.drill.live import screen_at_hand
from reaper.drill.recoveries import RECOVERIES, find_recovery
from reaper.drill.report import as_text
from reaper.drill.settings import DrillSettings
from reaper.drill.trace import Request, TokenTimes, generate_requests, plan_jobs, read_requests
from workers.protocol.errors import ConfigurationError
from workers.runtime.options import errors_as_sentences, examples

GENERATED_JOBS = 1_000
GENERATED_RATE = 70.0
"""Jobs a second; with the generated durations about 20 are in flight at a time."""
DEMO_JOBS = 700
QUIET_LOOK_INTERVAL = timedelta(seconds=1)

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
HELP = """Break an installation on purpose, and account for every job.

Starts workers and reapers as processes, replays a trace of jobs, kills and pauses processes at the given times,
and prints a ledger. Exits 0 only if every job is settled or dead-lettered, the dead letters are the poison jobs
that were put in, and a leader paused past its lease had its stale write refused; else 1, 2 where it cannot be played,
and 130 when interrupted. Timeouts are short, so that a drill ends while you watch; they are not for production.

\b
Recovery:
  reaper     replicated reapers beside plain workers
  embedded   no reapers; the workers recover what stalls
  published  a reference: the auto-claiming loop as it is usually published; it may lose jobs and double work
  none       a reference: nobody recovers

\b
Faults, at so many seconds after the first job (* or as soon after as there is something to hit):
  kill-worker@4            kill -9 of a worker with jobs in flight *
  kill-workers:half@4      kill -9 of half the workers at once (or :all, or :2, the first ones)
  poison@4                 a job that kills every worker that takes it (poison:3@4: three of them)
  kill-leader@4            kill -9 of the reaper that leads *
  pause-leader@4           a worker is killed, and the leader stopped between deciding and writing the
                           recovery, past its lease; then it goes on *
  kill-reapers@4+10        kill -9 of all reapers, which are started again 10 s later (without +10: never)
  pause-redis@4+10         Redis is stopped for 10 s
  long-jobs:20@4+6         no fault: 20 more jobs at once, 6 s each
Where no reapers run, pause-leader only kills the worker, and what hits reapers alone is left out and said so.
"""

_DEFAULTS = DrillSettings()
_TOKENS = TokenTimes()

_json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report to this file.",
)


@click.command(
    help=HELP,
    epilog=examples(
        "reaper drill",
        "reaper drill --trace trace.csv --speedup 30 --limit 2000 --json report.json",
        "reaper drill --recovery embedded --fault kill-worker@4 --fault pause-redis@8+5",
        "reaper drill --redis-url redis://127.0.0.1:6379/5 --workers 8 --show-trace",
    ),
)
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
    help="Worker processes.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=_DEFAULTS.concurrency,
    show_default=True,
    help="Jobs that a worker runs at a time (the bare one: 1; published: loops in a process, at most 250).",
)
@click.option(
    "--bare-worker/--no-bare-worker",
    default=_DEFAULTS.bare_worker,
    show_default=True,
    help="Let the last worker be a bare redis-py loop; without, all are alike.",
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
    "--scan-interval",
    type=click.FloatRange(min=0.05),
    help="Seconds between two scans of the leader. Default: an eighth of the visibility timeout, at most 1.",
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
    "--redis-pid", type=click.IntRange(min=1), help="Its process on this machine, which pause-redis may stop."
)
@click.option(
    "--keep-keys",
    is_flag=True,
    help="Leave this drill's streams and journals in the Redis of --redis-url (see --json).",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="KIND[:AMOUNT]@SECONDS[+SECONDS]",
    help=f"Repeatable; or none. Default: {' '.join(map(str, DEFAULT_FAULTS))}.",
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Measure everybody for so many seconds before the first job, with nothing to do.",
)
@click.option(
    "--quiet", is_flag=True, help="No view, and a look at Redis a second only, so that it disturbs no measurement."
)
@click.option(
    "--seed", type=int, default=_DEFAULTS.seed, show_default=True, help="Of the generated trace and the payloads."
)
@_json_option
@click.option("--show-trace", is_flag=True, help="Trace every job, and print the trace of one that was recovered.")
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
    bare_worker: bool,
    reapers: int,
    visibility_timeout: float,
    lease_ttl: float,
    scan_interval: float | None,
    recovery: str,
    redis_url: str | None,
    redis_pid: int | None,
    keep_keys: bool,
    faults: tuple[str, ...],
    idle: float,
    quiet: bool,
    seed: int,
    json_file: Path | None,
    show_trace: bool,
    files: Path | None,
) -> None:
    """Play one drill; see `HELP`."""
    with _errors_for_people():
        times = TokenTimes(timedelta(milliseconds=prefill_ms), timedelta(milliseconds=decode_ms))
        settings = DrillSettings(
            workers=workers,
            reapers=reapers,
            concurrency=concurrency,
            visibility_timeout=timedelta(seconds=visibility_timeout),
            lease_ttl=timedelta(seconds=lease_ttl),
            scan_interval=timedelta(seconds=scan_interval or min(1.0, visibility_timeout / 8)),
            faults=_read_faults(faults),
            seed=seed,
            trace="generated" if trace is None else trace.name,
            speedup=speedup,
            bare_worker=bare_worker,
            idle=timedelta(seconds=idle),
            look_interval=QUIET_LOOK_INTERVAL if quiet else _DEFAULTS.look_interval,
        )
        requests = _generate(seed, limit) if trace is None else read_requests(trace, limit=limit)
        jobs = plan_jobs(requests, times, speedup=speedup)
        programme = Programme(
            settings, jobs, [find_recovery(recovery)], redis_url, files, redis_pid, keep_keys=keep_keys
        )
        with _trace_shown(programme, wanted=show_trace) as programme:
            (outcome,) = _perform(programme, quiet=quiet)
        if json_file:
            _write_json(json_file, outcome.as_json())
    sys.exit(EXIT_FAILED if outcome.objections else 0)


@click.command(epilog=examples("reaper demo", "reaper demo --redis-url redis://127.0.0.1:6379/5 --json demo.json"))
@click.option("--redis-url", envvar="REAPER_REDIS_URL", help="A Redis to use. Default: one of its own.")
@click.option("--seed", type=int, default=_DEFAULTS.seed, show_default=True, help="Of the trace and the payloads.")
@_json_option
def demo(redis_url: str | None, seed: int, json_file: Path | None) -> None:
    """Show what happens to the jobs of a killed worker: without recovery, with the reaper, and embedded.

    Three acts on the same trace with the same faults, in less than a minute. Exits 0 only if the second and the third
    end as promised (see: reaper drill --help), else 1, 2 where they cannot be played, and 130 when interrupted. Ends
    with the OpenTelemetry trace of a job that was recovered.
    """
    with _errors_for_people():
        settings = DrillSettings(seed=seed, faults=DEMO_FAULTS)
        jobs = plan_jobs(_generate(seed, DEMO_JOBS), TokenTimes())
        acts = [find_recovery(name) for name in ("none", "reaper", "embedded")]
        with _trace_shown(Programme(settings, jobs, acts, redis_url)) as programme:
            outcomes = _perform(programme)
            without, with_reaper, embedded = (outcome.ledger.stuck for outcome in outcomes)
            click.echo(
                f"\nWithout recovery {without} jobs were stuck for good; "
                f"with the reaper {with_reaper}, embedded {embedded}."
            )
        if json_file:
            _write_json(json_file, {"acts": [outcome.as_json() for outcome in outcomes]})
    failed = any(outcome.objections for outcome in outcomes if outcome.stage.recovery.promises)
    sys.exit(EXIT_FAILED if failed else 0)


def _read_faults(texts: tuple[str, ...]) -> tuple[Fault, ...]:
    if texts == ("none",):
        return ()
    return tuple(parse_fault(text) for text in texts) or DEFAULT_FAULTS


def _generate(seed: int, limit: int | None) -> list[Request]:
    return generate_requests(seed, count=limit or GENERATED_JOBS, rate=GENERATED_RATE)


def _perform(programme: Programme, *, quiet: bool = False) -> list[Outcome]:
    """Play, telling what is played and how each act ended."""
    screen = screen_at_hand(quiet=quiet)
    click.echo(_introduction(programme))
    return perform(programme, screen, opens=click.echo, closes=_close)


@contextmanager
def _trace_shown(programme: Programme, *, wanted: bool = True) -> Iterator[Programme]:
    """Give the programme with traces; once the block has played it, print the trace of a recovered job."""
    if not wanted:
        yield programme
        return
    try:
        from reaper.drill.tracing import as_tree, recovered_trace, tracing  # an extra
    except ImportError as error:
        raise ConfigurationError(
            f"a trace is to be shown, and {error.name} is not installed: pip install 'stream-reaper[telemetry]'."
        ) from error
    with tracing() as traces:
        yield replace(programme, tracing=traces)
        traces.flush()
        spans = recovered_trace(traces.received.spans)
    if spans:
        click.echo(f"\nTrace of a job whose worker was killed:\n{as_tree(spans)}")
    else:
        click.echo("\nNo job was recovered and then acknowledged by a worker that traces: there is no trace to show.")


def _introduction(programme: Programme) -> str:
    settings, span = programme.settings, programme.jobs[-1].at.total_seconds()
    reapers = any(recovery.by_reapers for recovery in programme.recoveries)
    return (
        f"{len(programme.jobs)} jobs in {span:.0f} s (trace: {settings.trace}), {settings.workers} workers"
        f"{f', {settings.reapers} reapers' if reapers else ''}.\n"
        f"visibility timeout {settings.visibility_timeout.total_seconds():g} s, lease TTL "
        f"{settings.lease_ttl.total_seconds():g} s, scan interval {settings.scan_interval.total_seconds():g} s, "
        f"max_deliveries {settings.max_deliveries}: short, so that you can watch. Not for production.\n"
        f"Faults: {' '.join(map(str, settings.faults)) or 'none'}."
    )


def _close(outcome: Outcome) -> None:
    recovery = outcome.stage.recovery
    table = as_text(outcome.ledger, recovery=recovery, started_at=outcome.started_at)
    click.echo(f"\nLedger, {recovery.title}:\n{table}")
    # Of the references nothing is promised: what is stuck or lost is what the act shows.
    for objection in outcome.objections if recovery.promises else ():
        click.echo(f"  NOT AS PROMISED: {objection}.")


def _write_json(file: Path, report: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--json {file} cannot be written: {error.strerror}.") from error


@contextmanager
def _errors_for_people() -> Iterator[None]:
    """Print what went wrong in a sentence, and exit."""
    with errors_as_sentences():
        try:
            yield
        except InterruptedDrillError as error:
            click.echo(str(error), err=True)
            sys.exit(EXIT_INTERRUPTED)
