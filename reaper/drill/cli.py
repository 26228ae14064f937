"""The commands ``reaper drill`` and ``reaper demo``."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import click

from reaper.drill.act import Outcome
from reaper.drill.drill import InterruptedDrillError, Programme, perform
from reaper.drill.faults import DEFAULT_FAULTS, parse_fault
from reaper.drill.live import screen_at_hand
from reaper.drill.report import as_text
from reaper.drill.stage import RECOVERIES, DrillSettings, find_recovery
from reaper.drill.trace import PlannedJob, TokenTimes, generate_requests, plan_jobs, read_requests
from workers.protocol.errors import StreamReaperError

GENERATED_JOBS = 900
GENERATED_RATE = 60.0
"""Jobs a second; with the generated durations about 13 are in flight at a time."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_DEFAULTS = DrillSettings()
_TOKENS = TokenTimes()


def _seconds(default: timedelta) -> float:
    return default.total_seconds()


@click.command()
@click.option("--trace", type=click.Path(path_type=Path), help="CSV file: TIMESTAMP,ContextTokens,GeneratedTokens. Default: a generated one.")
@click.option("--speedup", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Replay arrivals this many times faster.")
@click.option("--limit", type=click.IntRange(min=1), help="Replay no more than this many jobs.")
@click.option("--prefill-ms", type=click.FloatRange(min=0), default=_TOKENS.prefill / timedelta(milliseconds=1), show_default=True, help="Duration of a context token.")
@click.option("--decode-ms", type=click.FloatRange(min=0), default=_TOKENS.decode / timedelta(milliseconds=1), show_default=True, help="Duration of a generated token.")
@click.option("--workers", type=int, default=_DEFAULTS.workers, show_default=True, help="Worker processes; the last of two or more is a bare redis-py loop.")
@click.option("--concurrency", type=click.IntRange(min=1), default=_DEFAULTS.concurrency, show_default=True, help="Jobs that a worker runs at a time (the bare one: 1).")
@click.option("--reapers", type=int, default=_DEFAULTS.reapers, show_default=True, help="Reaper replicas.")
@click.option("--visibility-timeout", type=click.FloatRange(min=0.1), default=_seconds(_DEFAULTS.visibility_timeout), show_default=True, help="Seconds.")
@click.option("--lease-ttl", type=click.FloatRange(min=0.5), default=_seconds(_DEFAULTS.lease_ttl), show_default=True, help="Seconds.")
@click.option("--recovery", type=click.Choice(list(RECOVERIES)), default="reaper", show_default=True, help="How stalled jobs come back.")
@click.option("--redis-url", envvar="REAPER_REDIS_URL", help="A Redis to use; only keys of this drill are touched. Default: one of its own.")
@click.option("--fault", "faults", multiple=True, help=f"KIND@SECONDS, repeatable. Default: {' '.join(map(str, DEFAULT_FAULTS))}.")
@click.option("--seed", type=int, default=_DEFAULTS.seed, show_default=True, help="Of the generated trace and the payloads.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to this file.")
@click.option("--files", type=click.Path(path_type=Path, file_okay=False), help="Keep the ledgers and logs of all processes in this folder.")
def drill(
    trace: Path | None, speedup: float, limit: int | None, prefill_ms: float, decode_ms: float, workers: int,
    concurrency: int, reapers: int, visibility_timeout: float, lease_ttl: float, recovery: str, redis_url: str | None,
    faults: tuple[str, ...], seed: int, json_file: Path | None, files: Path | None,
) -> None:
    """Break a real installation on purpose, and account for every job.

    Starts workers and reapers as processes, replays a trace of jobs, kills and pauses processes at the given times,
    and prints a ledger. Exits 0 only if every job is settled or dead-lettered, the dead letters are the poison jobs that
    were put in, and a leader paused past its lease had its stale write refused. Timeouts are short, so that a drill
    ends while you watch; they are not for production.

    Faults: kill-worker (kill -9 of a worker with jobs in flight), kill-leader (kill -9 of the reaper that leads),
    pause-leader (the leader is stopped between deciding and writing, past its lease, and goes on), poison (a job that
    kills every worker that takes it).
    """  # fmt: skip
