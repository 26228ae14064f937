"""The commands ``reaper drill`` and ``reaper demo``."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from reaper.drill.act import Ending
from reaper.drill.chaos import in_words
from reaper.drill.drill import InterruptedDrillError, Programme, perform
from reaper.drill.faults import DEMO_FAULTS
from reaper.drill.lines import fitted
from reaper.drill.live import screen_at_hand
from reaper.drill.plan import planned
from reaper.drill.recoveries import RECOVERIES, Recovery, find_recovery
from reaper.drill.report import as_text
from reaper.drill.settings import DrillSettings
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import counted
from workers.runtime.entrance import INTERRUPTED_EXIT
from workers.runtime.options import errors_as_sentences, examples, settings_options
from workers.runtime.output_files import OutputFile, output_file
from workers.runtime.printing import show
from workers.runtime.settings import load_settings

DEMO_JOBS = 700

EXIT_FAILED = 1
NEXT = (
    ("{reaper} drill --chaos 60", "faults of all kinds, drawn by seed"),
    ("{reaper} init orders/billing", "a group on a Redis of your own"),
    ("docs/README.md", "where to read on"),
)
HELP = """Break an installation on purpose, and account for every job.

Starts workers and reapers as processes, replays a trace of jobs, kills and pauses processes at the given times,
and prints a ledger. Exits 0 only if every job is settled or dead-lettered, the dead letters are the poison jobs
that were put in, and a leader paused past its lease had its stale write refused; else 1, 2 where it cannot be played,
and 130 when interrupted. Timeouts are short, so that a drill ends while you watch; they are not for production.

\b
Recovery:
  reaper     replicated reapers beside plain workers
  embedded   no reapers; the workers recover what stalls
  claim      the same, and nothing is copied: reads with CLAIM bring it (Redis 8.4)
  published  a reference: the auto-claiming loop as it is usually published; it may lose jobs and double work
  none       a reference: nobody recovers

\b
Faults, at so many seconds after the first job (* or as soon after as there is something to hit):
  kill-worker@4            kill -9 of a worker with jobs in flight *
  kill-workers:half@4      kill -9 of half the workers at once (or :all, or :2, the first ones)
  pause-worker@4+6         a worker with jobs in flight is stopped for 6 s, and goes on *
  poison@4                 a job that kills every worker that takes it (poison:3@4: three of them)
  kill-leader@4            kill -9 of the reaper that leads *
  pause-leader@4           a worker is killed, and the leader stopped between deciding and writing the
                           recovery, past its lease; then it goes on *
  kill-reapers@4+10        kill -9 of all reapers, which are started again 10 s later (without +10: never)
  pause-redis@4+10         Redis is stopped for 10 s
  restart-redis@4+2        kill -9 of Redis, which is started again 2 s later, with all that it had answered for
  fill-redis@4+5           Redis is full for 5 s, and refuses writes
  cut-connections@4        every connection to Redis is cut at once
  clock-step:ahead@4       the server's clock is set ahead by an hour (or :back); needs a C compiler
  shorten-visibility@4     the visibility timeout becomes a quarter, and no worker is told
  destroy-group@4          the group is destroyed (XGROUP DESTROY), with what is pending
  delete-consumer:killed@4 a worker is killed, and its consumer deleted (XGROUP DELCONSUMER), with what it
                           holds (or :live, and the worker goes on) *
  kill-master:behind@4     kill -9 of the master, and a replica is promoted that has heard nothing of it for 1 s
                           (or :synced, and it has heard all); --topology sentinel or cluster
  pause-master@4+2         the master is stopped until a replica is promoted, and 2 s longer; it goes on
  move-slot@4+1            the stream's slot moves to another master, half moved for 1 s; --topology cluster
  long-jobs:20@4+6         no fault: 20 more jobs at once, 6 s each
--chaos 60 draws faults of all kinds for 60 s instead, at random moments and on random targets: the same for the same
seed, mode and options, and told beforehand. What would cost an innocent job its last delivery is not drawn together.
Where no reapers run, pause-leader only kills the worker, and what hits reapers alone is left out and said so.
"""

_redis_option = click.option(
    "--redis-url", envvar="REAPER_REDIS_URL", help=DrillSettings.model_fields["redis_url"].description
)
_json_option = output_file("--json", "json_file", metavar="FILE", help="Write the report to this file.")


@click.command(
    help=HELP,
    epilog=examples(
        "reaper drill",
        "reaper drill --trace trace.csv --speedup 30 --limit 2000 --json report.json",
        "reaper drill --chaos 60 --seed 7",
        "reaper drill --recovery embedded --fault kill-worker@4 --fault pause-redis@8+5",
        "reaper drill --topology sentinel --fault kill-master@3 --fault pause-master@9+1",
        "reaper drill --redis-url redis://127.0.0.1:6379/5 --workers 8 --show-trace",
    ),
)
@click.option(
    "--recovery",
    type=click.Choice(list(RECOVERIES)),
    default="reaper",
    show_default=True,
    help="How stalled jobs come back.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="KIND[:AMOUNT]@SECONDS[+SECONDS]",
    help=DrillSettings.model_fields["faults"].description,
)
@settings_options(DrillSettings, exclude=("redis_url", "faults", "max_deliveries"))
@_redis_option
@_json_option
@click.option("--show-trace", is_flag=True, help="Trace every job, and print the trace of one that was recovered.")
def drill(recovery: str, json_file: OutputFile | None, show_trace: bool, **flags: Any) -> None:
    """Play one drill; see `HELP`."""
    with _errors_for_people():
        settings = load_settings(DrillSettings, flags=flags)
        programme = _programme(settings, find_recovery(recovery), faults_given=bool(flags.get("faults")))
        with _trace_shown(programme, wanted=show_trace) as programme:
            (ending,) = _perform(programme)
        if json_file:
            json_file.write(_as_text(ending.as_json()))
    sys.exit(EXIT_FAILED if ending.objections else 0)


@click.command(epilog=examples("reaper demo", "reaper demo --redis-url redis://127.0.0.1:6379/5 --json demo.json"))
@_redis_option
@settings_options(DrillSettings, exclude=DrillSettings.model_fields.keys() - {"seed"})
@_json_option
def demo(json_file: OutputFile | None, **flags: Any) -> None:
    """Show what happens to the jobs of a killed worker: without recovery, with the reaper, and embedded.

    Three acts on the same trace with the same faults, in about a minute. Exits 0 only if the second and the third
    end as promised (see: reaper drill --help), else 1, 2 where they cannot be played, and 130 when interrupted. Ends
    with the OpenTelemetry trace of a job that was recovered.
    """
    with _errors_for_people():
        settings = load_settings(DrillSettings, flags=flags | {"faults": DEMO_FAULTS, "limit": DEMO_JOBS})
        acts = [find_recovery(name) for name in ("none", "reaper", "embedded")]
        with _trace_shown(Programme(settings, planned(settings), acts)) as programme:
            endings = _perform(programme)
            show("", *fitted(_moral(endings)))
        if json_file:
            json_file.write(_as_text({"acts": [ending.as_json() for ending in endings]}))
        show("", *_next_steps(sys.argv[0]))
    failed = any(ending.objections for ending in endings if ending.stage.recovery.promises)
    sys.exit(EXIT_FAILED if failed else 0)


def _next_steps(program: str) -> list[str]:
    """Return what to type next, as it can be typed: ``make demo`` starts a ``program`` that is not on the PATH."""
    reaper = "reaper" if shutil.which("reaper") or program.endswith(".py") else program
    steps = [(step.format(reaper=reaper), why) for step, why in NEXT]
    width = max(len(step) for step, _ in steps)
    return [f"{'      ' if number else 'next: '}{step:<{width}}   {why}" for number, (step, why) in enumerate(steps)]


def _moral(endings: list[Ending]) -> list[str]:
    """Return what the acts have shown."""
    without, with_reaper, embedded = (ending.ledger.stuck for ending in endings)
    stuck = counted(without, "job was", "jobs were")
    told = [f"Without recovery {stuck} stuck for good; with the reaper {with_reaper}, embedded {embedded}."]
    if any(ending.ledger.duplicates for ending in endings):
        told.append(
            "A job counts as a duplicate that ran to its end twice: it was done when its worker was killed, and its "
            "acknowledgement not sent yet. No queue can tell that: delivery is at least once, so handlers should be "
            "idempotent."
        )
    return told


def _programme(settings: DrillSettings, recovery: Recovery, *, faults_given: bool) -> Programme:
    """Return what to play: the faults that were asked for, or those of a chaos. Raises ConfigurationError."""
    if settings.chaos and faults_given:
        raise ConfigurationError("--chaos draws all faults by itself: leave --fault away.")
    jobs = planned(settings)
    meant = settings if faults_given or settings.chaos else settings.with_own_faults().fitting(jobs)
    return Programme(meant.in_chaos(recovery, jobs), jobs, [recovery])


def _perform(programme: Programme) -> list[Ending]:
    """Play, telling what is played and how each act ended."""
    for recovery in programme.recoveries:
        programme.settings.check(recovery)
    screen = screen_at_hand(quiet=programme.settings.quiet)
    show(*_introduction(programme))
    return perform(programme, screen, opens=lambda text: show(*fitted(text.split("\n"))), closes=_close)


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
        show("", "Trace of a job whose worker was killed:", *fitted(as_tree(spans).split("\n")))
    else:
        show("", "No job was recovered and then acknowledged by a worker that traces: there is no trace to show.")


def _introduction(programme: Programme) -> list[str]:
    settings, span = programme.settings, programme.jobs[-1].at.total_seconds()
    reapers = any(recovery.by_reapers for recovery in programme.recoveries)
    told = [
        (
            f"{counted(len(programme.jobs), 'job')} in {span:.0f} s (trace: {settings.trace_name}), "
            f"{counted(settings.workers, 'worker')}"
            f"{', ' + counted(settings.reapers, 'reaper') if reapers else ''}."
        ),
        (
            f"visibility timeout {settings.visibility_timeout.total_seconds():g} s, lease TTL "
            f"{settings.lease_ttl.total_seconds():g} s, scan interval {settings.scan.total_seconds():g} s, "
            f"max_deliveries {settings.max_deliveries}: short, so that you can watch. Not for production."
        ),
    ]
    return [*fitted(told), *_faults(programme)]


def _faults(programme: Programme) -> list[str]:
    settings = programme.settings
    if settings.chaos is None:
        return fitted([f"Faults: {' '.join(map(str, settings.faults)) or 'none'}."])
    (recovery,) = programme.recoveries
    return [
        f"Chaos of seed {settings.seed}: {len(settings.faults)} faults in {settings.chaos.total_seconds():g} s.",
        *fitted(f"  {in_words(fault)}" for fault in settings.faults),
        *(f"  Left out here: {kind}." for kind in sorted(settings.out_of_reach)),
        f"Again: {settings.command(recovery)}",
    ]


def _close(ending: Ending) -> None:
    recovery = ending.stage.recovery
    table = as_text(ending.ledger, recovery=recovery, started_at=ending.started_at)
    show("", f"Ledger, {recovery.title}:", *fitted(table.split("\n")))
    # Of the references nothing is promised: what is stuck or lost is what the act shows.
    for objection in ending.objections if recovery.promises else ():
        show(*fitted([f"  NOT AS PROMISED: {objection}."]))
    settings = ending.stage.settings
    if settings.chaos and recovery.promises and ending.objections:
        show(f"  Play it again: {settings.command(recovery)}", whole=True)


def _as_text(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=2) + "\n"


@contextmanager
def _errors_for_people() -> Iterator[None]:
    """Print what went wrong in a sentence, and exit."""
    with errors_as_sentences():
        try:
            yield
        except InterruptedDrillError as error:
            show(str(error), err=True)
            sys.exit(INTERRUPTED_EXIT)
