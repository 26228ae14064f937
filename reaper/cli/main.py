"""The command ``reaper``, assembled from the modules of this package."""

import os

import click

from reaper.cli.acl import acl
from reaper.cli.dead_letters import dead_letters
from reaper.cli.doctor import doctor
from reaper.cli.drain import drain_command
from reaper.cli.explain import explain_command
from reaper.cli.groups import groups
from reaper.cli.lazy import LazyCommand
from reaper.cli.run import run
from reaper.cli.status import replicas, status
from reaper.cli.watch import watch
from workers.runtime.options import Program, examples


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "reaper run --groups orders/billing", "reaper status", "reaper explain order-4711", "reaper doctor"
    ),
)
@click.version_option(package_name="stream-reaper", prog_name="reaper")
@click.pass_context
def main(context: click.Context) -> None:
    """Recover stalled jobs of Redis Streams.

    Exit status of every command: 0 done, 1 negative result, 2 wrong usage or settings, 3 Redis is unreachable, 130
    Ctrl-C. The help of each command describes its negative result.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False


for command in (
    run, status, replicas, drain_command, groups, watch, dead_letters, explain_command, doctor, acl,
    LazyCommand("drill", "reaper.drill.cli", "Break an installation on purpose, and account for every job."),
    LazyCommand("demo", "reaper.drill.cli", "Play the drill without recovery, with reapers, and embedded."),
    LazyCommand("pipeline", "reaper.pipeline.cli", "Ingest journals into Delta tables, and report on them."),
    LazyCommand("compare", "reaper.pipeline.compare.command", "Compare the recovery modes under the same faults."),
):  # fmt: skip
    main.add_command(command)
