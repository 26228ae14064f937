"""``reaper pause``, ``reaper resume`` and ``reaper forget``: what is done to one group."""

from dataclasses import asdict

import click

from reaper.cli.options import Wanted, connected, find_pair, json_option, known, operator_options
from reaper.operations.groups import forget as forget_group
from reaper.operations.groups import set_paused
from reaper.settings import ReaperSettings
from workers.protocol.calls import Journal
from workers.runtime.options import examples
from workers.runtime.printing import confirm, show, show_json

group_argument = click.argument("group", metavar="GROUP")
stream_option = click.option(
    "--stream", metavar="STREAM", help="The group's stream, where several have a group of this name."
)


@click.command(epilog=examples("reaper pause billing", "reaper pause billing --stream orders --json"))
@group_argument
@stream_option
@json_option
@operator_options
async def pause(group: str, stream: str | None, machine: bool, settings: ReaperSettings) -> None:
    """Stop all recovery in GROUP until `reaper resume GROUP`; workers go on.

    Exit code 0 paused, also where it was before; 2 not possible.
    """
    await _set_paused(settings, Wanted(stream, group), True, machine)


@click.command(epilog=examples("reaper resume billing"))
@group_argument
@stream_option
@json_option
@operator_options
async def resume(group: str, stream: str | None, machine: bool, settings: ReaperSettings) -> None:
    """Let recovery in GROUP go on after `reaper pause GROUP`.

    Exit code 0 it goes on, also where it did before; 2 not possible.
    """
    await _set_paused(settings, Wanted(stream, group), False, machine)


async def _set_paused(settings: ReaperSettings, pair: Wanted, paused: bool, machine: bool) -> None:
    async with connected(settings, pair) as (client, _):
        keys = await find_pair(client, settings, pair)
        changed = await set_paused(client, keys, paused)
    state = "paused" if paused else "resumed"
    if machine:
        show_json({"pair": keys.pair, "paused": paused, "changed": changed})
        return
    show(f"{keys.pair}: {state}" + ("" if changed else f" (it was {state} already)"))


@click.command(epilog=examples("reaper forget billing", "reaper forget billing --dead-letters --yes --json"))
@group_argument
@stream_option
@click.option("--dead-letters", "with_dead_letters", is_flag=True, help="Remove the dead letters too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@operator_options
async def forget(
    group: str, stream: str | None, with_dead_letters: bool, yes: bool, machine: bool, settings: ReaperSettings
) -> None:
    """Remove what is kept in Redis for GROUP: fence, agreement, suspects, schedule, retry stream, journal.

    Jobs that wait there become ready first. Stop the replicas that serve the group, and for policy retry-stream the
    workers that read it, before. Exit code 0 done, 1 you said no, 2 not possible.
    """
    pair = Wanted(stream, group)
    async with connected(settings, pair) as (client, _):
        keys = await find_pair(client, settings, pair)
        if not yes:
            also = ", dead letters included" if with_dead_letters else ""
            confirm(f"Remove what is kept for {keys.pair}{also}?")
        forgotten = await forget_group(
            client,
            keys,
            namespace=settings.namespace,
            dead_letters=with_dead_letters,
            known=await known(client, settings),
            journal=Journal.at(settings.journal, settings.journal_maxlen),
        )
    if machine:
        show_json({"pair": keys.pair, **asdict(forgotten)})
        return
    if forgotten.made_ready:
        show(f"{keys.pair}: {forgotten.made_ready} waiting jobs are ready now")
    for key in forgotten.removed:
        show(f"removed {key}")
    for key in forgotten.kept:
        show(f"kept    {key}")
    if not forgotten.removed:
        show(f"{keys.pair}: nothing was there to remove")
