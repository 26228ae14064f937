"""``reaper dead-letters``: list, show, redrive and delete dead letters."""

import json
from dataclasses import replace
from typing import Any

import click

from reaper.cli.options import (
    all_option,
    connected,
    group_argument,
    group_options,
    groups_options,
    ids_argument,
    json_option,
    known_or_named,
    reason_option,
    show_result,
    yes_option,
)
from reaper.cli.ready_again import redrive
from reaper.operations.dead_letters import DeadLetter, Selection, check_ids, choose, delete, find, json_value, select
from reaper.operations.durations import duration
from reaper.operations.groups import check_exists
from reaper.settings import ReaperSettings
from workers.protocol.errors import NotPossibleError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.clock import server_ms
from workers.runtime.options import DurationType, GroupType, examples, help_end
from workers.runtime.printing import confirm, show, show_json


@click.group(
    "dead-letters",
    epilog=examples("reaper dead-letters list", "reaper dead-letters redrive orders/billing --all --dry-run"),
)
def dead_letters() -> None:
    """List, show, redrive or delete dead letters."""


dead_letters.add_command(redrive)


@dead_letters.command(
    "list",
    epilog=help_end(
        "reaper dead-letters list orders/billing",
        "reaper dead-letters list --reason timeout -o json",
        ok="done, also if there are none",
        no="the group does not exist",
    ),
)
@click.argument("keys", metavar="[STREAM/GROUP]", type=GroupType(), required=False)
@reason_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many to print.")
@json_option
@groups_options
async def list_(
    keys: GroupKeys | None, reason: str | None, limit: int, machine: bool, settings: ReaperSettings
) -> None:
    """List the dead letters of a group, or of all groups."""
    found: list[DeadLetter] = []
    async with connected(settings) as (client, _):
        for one in await known_or_named(client, settings, keys):
            async for letter in select(client, one, Selection(reason=reason)):
                found.append(letter)
                if len(found) > limit:
                    break
        now_ms = await server_ms(client)
    if machine:
        show_json([letter.as_json() for letter in found[:limit]])
        return
    show(*(_list_line(letter, now_ms) for letter in found[:limit]))
    if len(found) > limit:
        show(f"only the first {limit} are listed: raise --limit", err=True)
    elif not found:
        show("no dead letters", err=True)


def _list_line(letter: DeadLetter, now_ms: int) -> str:
    age = duration(max(0, now_ms - letter.at_ms))
    error = f": {letter.error}" if letter.error else ""
    return (
        f"{letter.id}  {letter.group}  job {letter.job}  {age} ago  "
        f"deliveries {letter.deliveries}  generation {letter.generation}  {letter.reason}{error}"
    )


@dead_letters.command(
    "show",
    epilog=help_end(
        "reaper dead-letters show orders/billing 1766000000000-0", no="the group or the dead letter does not exist"
    ),
)
@group_argument
@click.argument("entry_id", metavar="ID")
@json_option
@group_options
async def show_(keys: GroupKeys, entry_id: str, machine: bool, settings: ReaperSettings) -> None:
    """Show a dead letter with its payload and history."""
    check_ids([entry_id])
    async with connected(settings) as (client, _):
        await check_exists(client, keys)
        letter = await find(client, keys, entry_id)
    if letter is None:
        raise NotPossibleError(f"{_missing(keys, [entry_id])} `reaper dead-letters list {keys.name}` lists all.")
    if machine:
        show_json(letter.as_json())
    else:
        show(*_lines_of(letter))


def _missing(keys: GroupKeys, ids: list[str]) -> str:
    """Return a sentence about dead letters that do not exist."""
    return f"dead letter {', '.join(ids)} of {keys.name} does not exist: it was redriven or deleted."


def _lines_of(letter: DeadLetter) -> list[str]:
    facts = replace(letter, fields=[]).as_json() | {"consumers": ", ".join(letter.consumers), "fields": ""}
    lines = [f"{name:<12} {value}" for name, value in facts.items() if value != ""]
    return [*lines, "", "fields", *(f"  {_value(name)} = {_value(value)}" for name, value in letter.fields)]


def _value(value: bytes) -> str:
    return json.dumps(json_value(value), ensure_ascii=False)


# --- delete -------------------------------------------------------------------------------------------------


@dead_letters.command(
    "delete",
    epilog=help_end(
        "reaper dead-letters delete orders/billing 1766000000000-0",
        "reaper dead-letters delete orders/billing --older-than 30d",
        ok="all selected dead letters are deleted, also if there are none",
        no="the group or a named dead letter does not exist, or you did not confirm",
    ),
)
@group_argument
@ids_argument
@reason_option
@all_option
@click.option("--older-than", "older_than_s", type=DurationType(), help="Only jobs that were dead-lettered longer ago.")
@yes_option
@json_option
@group_options
async def delete_(keys: GroupKeys, yes: bool, machine: bool, settings: ReaperSettings, **selected: Any) -> bool:
    """Delete dead letters for good.

    Select them by ID, by --reason and --older-than, or with --all. The jobs cannot be redriven afterwards.
    """
    selection = choose(**selected)
    async with connected(settings) as (client, _):
        await check_exists(client, keys)
        # The confirmation counts the letters that are deleted: later ones stay.
        letters = [letter.id async for letter in select(client, keys, selection)]
        if letters and not yes:
            confirm(f"Delete {counted(len(letters), 'dead letter')} of {keys.name} for good?")
        deleted = await delete(client, keys, letters)
    absent = [one for one in selection.ids if one not in letters]
    lines = [f"{keys.name}: {counted(deleted, 'dead letter')} deleted", *([_missing(keys, absent)] if absent else [])]
    show_result({"deleted": deleted, "missing": absent}, *lines, machine=machine)
    return not absent
