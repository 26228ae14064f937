"""``reaper drain``: move all groups away from a replica."""

import click

from reaper.cli.options import connected, json_option, namespace_options
from reaper.operations.drain import await_drained, drain, undo_drain
from reaper.operations.durations import duration
from reaper.settings import ReaperSettings
from workers.protocol.messages import counted
from workers.runtime.options import DurationType, help_end
from workers.runtime.printing import show, show_json


@click.command(
    "drain",
    epilog=help_end(
        "reaper drain host-7-a1b2c3",
        "reaper drain host-7-a1b2c3 --for 30m",
        "reaper drain host-7-a1b2c3 --undo",
        ok="the replica holds no group, or may take groups again",
        no="the replica still holds groups or does not exist, or no other replica could take them",
    ),
)
@click.argument("replica", metavar="REPLICA")
@click.option(
    "--for", "for_s", type=DurationType(), default="5m", show_default=True, help="How long it takes no groups."
)
@click.option("--timeout", type=DurationType(), default="20s", show_default=True, help="How long to wait.")
@click.option("--undo", is_flag=True, help="Let the replica take groups again.")
@json_option
@namespace_options
async def drain_command(
    replica: str, for_s: float, timeout: float, undo: bool, machine: bool, settings: ReaperSettings
) -> bool:
    """Move all groups of a replica to other replicas, and wait.

    REPLICA is an ID from `reaper replicas`. Other replicas with the same settings take the groups. No job is lost or
    recovered twice, because every write of a replica is checked against the lease of its group.
    """
    keys, for_ms, held = settings.namespace_keys, 0 if undo else round(for_s * 1000), 0
    async with connected(settings) as (client, _):
        if for_ms:
            held = await await_drained(client, keys, await drain(client, keys, replica, for_ms), timeout)
            message = f"{replica} holds no group, and takes none for {duration(for_ms)}."
        else:
            was_drained = await undo_drain(client, keys, replica)
            message = f"{replica} may take groups again." if was_drained else f"{replica} was not drained."
    if held:
        message = (
            f"{replica} still holds {counted(held, 'group')} after {timeout:g} s. It stays drained for "
            f"{duration(for_ms)}. See its log, or run `reaper drain {replica} --undo`."
        )
    if machine:
        show_json({"replica": replica, "drained_ms": for_ms, "holds": held})
    else:
        show(message, err=bool(held))
    return not held
