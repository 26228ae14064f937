"""The ``reaper`` command, put together of those in the modules beside."""

import os

import click

from reaper.cli.acl import acl
from reaper.cli.dead_letters import dead_letters
from reaper.cli.doctor import doctor
from reaper.cli.explain import explain_command
from reaper.cli.groups import forget, pause, resume
from reaper.cli.init import init
from reaper.cli.lazy import LazyGroup
from reaper.cli.leader import leader
from reaper.cli.requeue import requeue
from reaper.cli.run import run
from reaper.cli.status import status
from workers.runtime.options import examples
from workers.runtime.printing import show_crashes


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "reaper run --groups orders/billing", "reaper status", "reaper explain order-4711", "reaper doctor"
    ),
)
@click.version_option(package_name="stream-reaper", prog_name="reaper")
@click.pass_context
def main(context: click.Context) -> None:
    """Give stalled jobs of Redis Streams back to their consumer groups.

    Exit code 0 done; 2 not possible; 3 Redis cannot be reached, or does not admit us. A line gives the reason. If a
    command uses 1, its help says for what. Ctrl-C gives 130, except for services.
    """
    show_crashes()
    if os.environ.get("NO_COLOR"):
        context.color = False


for command in (init, run, status, pause, resume, forget, dead_letters, requeue, acl, doctor, explain_command, leader):
    main.add_command(command)
main.add_lazy("drill", "reaper.drill.cli", "Kill workers and leaders on purpose, and account for every job.")
main.add_lazy("demo", "reaper.drill.cli", "Show the failure drill in three acts: without recovery, reaper, embedded.")
main.add_lazy("pipeline", "reaper.pipeline.cli", "Bring journals into a lake of Delta tables, with Spark.")
main.add_lazy("compare", "reaper.pipeline.compare.command", "Play the same faults in every recovery mode, and compare.")
