"""``reaper watch``: add, remove or list groups that replicas watch besides those in their settings."""

import click

from reaper.cli.options import connected, group_argument, json_option, namespace_options, show_result
from reaper.operations.groups import check_exists
from reaper.settings import ReaperSettings
from reaper.watched import change_watched, read_found
from workers.protocol.errors import NotPossibleError
from workers.protocol.keys import GroupKeys
from workers.runtime.options import examples, help_end
from workers.runtime.printing import show


@click.group(epilog=examples("reaper watch add orders:7/billing", "reaper watch list"))
def watch() -> None:
    """Add, remove or list watched groups outside the settings.

    Replicas also add the groups that they find by a pattern in their settings, for example `orders:*`.
    """


@watch.command(
    epilog=help_end("reaper watch add orders:7/billing", ok="the group is watched", no="the group does not exist")
)
@group_argument
@json_option
@namespace_options
async def add(keys: GroupKeys, machine: bool, settings: ReaperSettings) -> None:
    """Make all replicas watch a group.

    They use the values of the first pattern in their settings that fits, or else their defaults.
    """
    async with connected(settings) as (client, _):
        await check_exists(client, keys)
        added = await change_watched(client, settings.namespace_keys, add={keys.name: ""}, by_person=True)
    line = f"{keys.name}: watched" if added else f"{keys.name}: was already watched"
    show_result({"group": keys.name, "watched": True, "changed": bool(added)}, line, machine=machine)


@watch.command(
    epilog=help_end("reaper watch remove orders:7/billing", ok="the group is removed", no="the group was not added")
)
@group_argument
@json_option
@namespace_options
async def remove(keys: GroupKeys, machine: bool, settings: ReaperSettings) -> None:
    """Stop watching a group that was added or found.

    A group in the settings of the replicas stays. A group that a pattern finds comes back, unless `exclude` names it.
    """
    async with connected(settings) as (client, _):
        removed = await change_watched(client, settings.namespace_keys, remove=[keys.name], by_person=True)
    if not removed:
        raise NotPossibleError(f"cannot remove {keys.name!r}: it was not added. See `reaper watch list`.")
    document = {"group": keys.name, "watched": False, "changed": True}
    show_result(document, f"{keys.name}: not watched", machine=machine)


@watch.command("list", epilog=help_end("reaper watch list", "reaper watch list -o json", ok="done, also if none"))
@json_option
@namespace_options
async def list_(machine: bool, settings: ReaperSettings) -> None:
    """List the groups, each with the pattern that found it."""
    async with connected(settings) as (client, _):
        found = sorted((await read_found(client, settings.namespace_keys)).items())
    groups = [{"group": name, "pattern": pattern} for name, pattern in found]
    lines = (f"{name}  {f'found by {pattern}' if pattern else 'added'}" for name, pattern in found)
    show_result({"namespace": settings.namespace, "groups": groups}, *lines, machine=machine)
    if not found and not machine:
        show("no groups besides those in the settings of the replicas", err=True)
