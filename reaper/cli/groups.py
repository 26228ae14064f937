"""``reaper groups``: create, pause, resume or forget a group."""

from collections.abc import Sequence

import click

from reaper.cli.options import (
    connected,
    group_argument,
    group_options,
    json_option,
    namespace_options,
    show_result,
    yes_option,
)
from reaper.cli.ready_again import requeue
from reaper.operations.groups import FROM_NOW, FROM_START, check_exists, create_group, set_paused
from reaper.operations.groups import forget as forget_group
from reaper.settings import ReaperSettings
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.options import GroupType, examples, help_end
from workers.runtime.printing import confirm


@click.group(epilog=examples("reaper groups create orders/billing", "reaper groups pause orders/billing"))
def groups() -> None:
    """Create, pause, resume or forget a group."""


groups.add_command(requeue)
_STARTS = {"start": FROM_START, "now": FROM_NOW}


@groups.command(
    epilog=help_end(
        "reaper groups create orders/billing",
        "reaper groups create orders/billing mail/sender --from now",
        ok="the groups exist",
    )
)
@click.argument("groups", metavar="STREAM/GROUP…", nargs=-1, required=True, type=GroupType())
@click.option(
    "--from",
    "begin",
    type=click.Choice(sorted(_STARTS)),
    default="start",
    show_default=True,
    help="Where a new group begins: at the oldest entry (start), or at the next one that is added (now).",
)
@json_option
@group_options
async def create(groups: Sequence[GroupKeys], begin: str, machine: bool, settings: ReaperSettings) -> None:
    """Create consumer groups, and streams that do not exist.

    A destroyed group continues after the last entry that it received, if the group settings still have it.
    """
    async with connected(settings) as (client, _):
        created = {keys.name: await create_group(client, keys, _STARTS[begin]) for keys in dict.fromkeys(groups)}
    lines = (f"{name}: {'created' if is_new else 'already exists'}" for name, is_new in created.items())
    document = [{"group": name, "created": is_new} for name, is_new in created.items()]
    show_result(document, *lines, machine=machine)


@groups.command(
    epilog=help_end("reaper groups pause orders/billing", ok="recovery is paused", no="the group does not exist")
)
@group_argument
@json_option
@group_options
async def pause(keys: GroupKeys, machine: bool, settings: ReaperSettings) -> None:
    """Pause recovery of a group.

    Workers continue. Recovery stays paused until `reaper groups resume`.
    """
    await _set_paused(settings, keys, True, machine)


@groups.command(
    epilog=help_end("reaper groups resume orders/billing", ok="recovery is not paused", no="the group does not exist")
)
@group_argument
@json_option
@group_options
async def resume(keys: GroupKeys, machine: bool, settings: ReaperSettings) -> None:
    """Resume recovery of a paused group."""
    await _set_paused(settings, keys, False, machine)


async def _set_paused(settings: ReaperSettings, keys: GroupKeys, paused: bool, machine: bool) -> None:
    async with connected(settings) as (client, _):
        await check_exists(client, keys)
        changed = await set_paused(client, keys, paused)
    state = "paused" if paused else "resumed"
    line = f"{keys.name}: recovery {state}" if changed else f"{keys.name}: recovery was already {state}"
    show_result({"group": keys.name, "paused": paused, "changed": changed}, line, machine=machine)


@groups.command(
    epilog=help_end(
        "reaper groups forget orders/billing",
        "reaper groups forget orders/billing --yes -o json",
        no="the group does not exist or is in use, or you did not confirm",
    )
)
@group_argument
@yes_option
@json_option
@namespace_options
async def forget(keys: GroupKeys, yes: bool, machine: bool, settings: ReaperSettings) -> None:
    """Remove stream-reaper's keys of a group from Redis.

    Stop the embedded workers of the group first, and remove it from the settings of the replicas. Scheduled jobs become
    ready before their schedule is removed. The stream, its consumer group, the dead letters and the journal stay.
    """
    async with connected(settings) as (client, _):
        await check_exists(client, keys)
        if not yes:
            confirm(f"Remove the keys of {keys.name}?")
        namespace, limit = settings.namespace, settings.journal_limit
        made_ready = await forget_group(client, keys, namespace=namespace, journal_limit=limit)
    ready = f", {counted(made_ready, 'scheduled job is', 'scheduled jobs are')} ready now" if made_ready else ""
    document = {"group": keys.name, "made_ready": made_ready}
    show_result(document, f"{keys.name}: the keys are removed{ready}", machine=machine)
