"""The commands ``reaper drill`` and ``reaper demo``."""

import json
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from reaper.drill.act import Ending
from reaper.drill.drill import DrillPlan, perform
from reaper.drill.faults import DEMO_FAULTS, FORMS, parse_long_jobs
from reaper.drill.live import fitted, plain_screen, quiet_screen
from reaper.drill.recoveries import RECOVERIES
from reaper.drill.report import as_text
from reaper.drill.settings import NO_OPTIONS, DrillSettings
from workers.protocol.messages import counted
from workers.runtime.options import (
    NEGATIVE_EXIT,
    errors_as_sentences,
    format_option,
    help_end,
    output_option,
    settings_options,
)
from workers.runtime.printing import show, show_json
from workers.runtime.settings import load_settings

DEMO_JOBS = 700
HELP = f"""Break an installation on purpose, and account for every job.

Starts workers and reapers as processes, replays a trace of jobs, kills and pauses processes at the given times,
and prints a ledger. The drill succeeds if every job is settled or dead-lettered, the dead letters are the poison
jobs, and the write of a holder that was paused past its lease was fenced. Timeouts are short, so that a drill
ends while you watch. They are not for production.

\b
Recovery:
  reaper     replicated reapers beside plain workers
  embedded   no reapers; the workers recover stalled jobs
  none       a reference: stalled jobs stay

\b
Faults, in seconds after the first job (* or as soon after as there is a process to hit):
{chr(10).join(f"  {form.example:<20} {form.does}" for form in FORMS.values())}
Without reapers, pause-holder only kills a worker, and the other faults of reapers are left out.
"""
_FIELDS = DrillSettings.model_fields
_redis_option = click.option("--redis-url", envvar="REAPER_REDIS_URL", help=_FIELDS["redis_url"].description)
_output_option = output_option(help="Write the report to this JSON file.")
_format_option = format_option("Print text, or only the report as JSON.")


@click.command(
    help=HELP,
    epilog=help_end(
        "reaper drill",
        "reaper drill --trace trace.csv --speedup 30 --limit 2000 --output report.json",
        "reaper drill --recovery embedded --fault kill-worker@4 --fault pause-redis@8+5",
        "reaper drill --redis-url redis://127.0.0.1:6379/5 --workers 8",
        ok="every job has the promised end",
        no="a job has not, or a write of an earlier holder was not fenced",
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
    help=_FIELDS["faults"].description,
)
@click.option("--long-jobs", multiple=True, metavar="AMOUNT@SECONDS+SECONDS", help=_FIELDS["long_jobs"].description)
@settings_options(DrillSettings, exclude=("redis_url", *NO_OPTIONS))
@_redis_option
@_output_option
@_format_option
def drill(recovery: str, output: Path | None, machine: bool, **flags: Any) -> None:
    """Play one drill (see `HELP`)."""
    with errors_as_sentences():
        flags["long_jobs"] = tuple(map(parse_long_jobs, flags["long_jobs"]))
        settings = load_settings(DrillSettings, flags=flags)
        jobs = settings.jobs()
        if not flags.get("faults"):  # the default ones only as far as the trace goes
            settings = settings.fitting(jobs)
        (ending,) = show_and_perform(DrillPlan(settings, jobs, [RECOVERIES[recovery]]), machine=machine)
        _report(ending.as_json(), output, machine=machine)
    sys.exit(NEGATIVE_EXIT if ending.objections else 0)


@click.command(
    epilog=help_end(
        "reaper demo",
        "reaper demo --redis-url redis://127.0.0.1:6379/5 --output demo.json",
        ok="the second and the third act end as promised",
        no="one of them does not",
    )
)
@_redis_option
@settings_options(DrillSettings, exclude=_FIELDS.keys() - {"seed"})
@_output_option
@_format_option
def demo(output: Path | None, machine: bool, **flags: Any) -> None:
    """Play the drill without recovery, with reapers, and embedded.

    Three acts on the same trace with the same faults, in about a minute. They show what happens to the jobs of a
    killed worker (see reaper drill --help).
    """
    with errors_as_sentences():
        settings = load_settings(DrillSettings, flags=flags | {"faults": DEMO_FAULTS, "limit": DEMO_JOBS})
        acts = [RECOVERIES[name] for name in ("none", "reaper", "embedded")]
        endings = show_and_perform(DrillPlan(settings, settings.jobs(), acts), machine=machine)
        _report({"acts": [ending.as_json() for ending in endings]}, output, machine=machine)
        if not machine:
            show("", *_conclusion(endings), "", *_next_steps(sys.argv[0]))
    failed = any(ending.objections for ending in endings if ending.stage.recovery.promises)
    sys.exit(NEGATIVE_EXIT if failed else 0)


def _next_steps(program: str) -> list[str]:
    """Return commands that can be typed, because ``make demo`` starts a ``program`` that is not on the PATH."""
    reaper = "reaper" if shutil.which("reaper") or program.endswith(".py") else program
    drill_help, create = f"{reaper} drill --help", f"{reaper} groups create orders/billing"
    return [
        f"next: {drill_help:<{len(create)}}   choose faults and traces",
        f"      {create}   create your own group",
        f"      {'docs/README.md':<{len(create)}}   documentation",
    ]


def _conclusion(endings: list[Ending]) -> list[str]:
    without, with_reaper, embedded = (ending.ledger.stuck for ending in endings)
    stuck = counted(without, "job was", "jobs were")
    lines = [f"Without recovery {stuck} stuck for good; with the reaper {with_reaper}, embedded {embedded}."]
    if any(ending.ledger.duplicates for ending in endings):
        lines.append(
            "A job counts as a duplicate if it ran to its end twice: its worker was killed after the work and before "
            "the acknowledgement. No queue can see that. Delivery is at least once, so make handlers idempotent."
        )
    return fitted(lines)


def show_and_perform(plan: DrillPlan, *, machine: bool = False) -> list[Ending]:
    """Play, and print the plan and the end of each act, unless ``machine``. Raises a StreamReaperError."""
    settings = plan.settings
    for recovery in plan.recoveries:
        settings.check(recovery)
    if machine:
        return perform(plan, quiet_screen, opens=lambda _text: None, closes=lambda _ending: None)
    reapers = any(recovery.by_reapers for recovery in plan.recoveries)
    cast = [counted(settings.workers, "worker"), *([counted(settings.reapers, "reaper")] if reapers else [])]
    trace, seconds = settings.trace, timedelta.total_seconds
    introduction = (
        f"{counted(len(plan.jobs), 'job')} in {seconds(plan.jobs[-1].at):.0f} s "
        f"(trace: {trace.name if trace else 'generated'}), {', '.join(cast)}.\n"
        f"visibility timeout {seconds(settings.visibility_timeout):g} s, lease TTL {seconds(settings.ttl):g} s, "
        f"tick {seconds(settings.scan):.2g} s, max_deliveries {settings.max_deliveries}: short, so that you can "
        f"watch. Not for production.\nFaults: {' '.join(map(str, (*settings.faults, *settings.long_jobs))) or 'none'}."
    )
    show(*fitted(introduction.split("\n")))
    screen = quiet_screen if settings.quiet else plain_screen
    return perform(plan, screen, opens=lambda text: show(*fitted(text.split("\n"))), closes=_close)


def _close(ending: Ending) -> None:
    recovery = ending.stage.recovery
    show("", f"Ledger, {recovery.title}:", *fitted(as_text(ending.ledger, recovery=recovery).split("\n")))
    # Without recovery jobs are expected to be stuck.
    for objection in ending.objections if recovery.promises else ():
        show(*fitted([f"  NOT AS PROMISED: {objection}."]))


def _report(report: dict[str, Any], output: Path | None, *, machine: bool) -> None:
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if machine:
        show_json(report)
