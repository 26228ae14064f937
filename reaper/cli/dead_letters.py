"""``reaper dead-letters``: list, show, redrive and delete dead letters."""

import json
from dataclasses import replace

import click

from reaper.cli.options import (
    all_option,
    connected,
    group_argument,
    groups_options,
    ids_argument,
    json_option,
    known_or_named,
    operator_options,
    reason_option,
    yes_option,
)
from reaper.cli.ready_again import redrive
from reaper.operations.dead_letters import DeadLetter, Selection, check_ids, choose, delete, find, json_value, select
from reaper.operations.groups import check_exists
from reaper.operations.words import duration
from reaper.settings import ReaperSettings
from workers.protocol.errors import NotPossibleError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.clock import server_ms
from workers.runtime.options import DurationType, GroupType, examples, help_end
from workers.runtime.printing import confirm, show, show_json

MOST_FIELDS, LONGEST_VALUE = 200, 1_000
"""Fields of a dead letter that are printed for people, and bytes of a name or value."""


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
    async with connected(settings, keys) as (client, _):
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
        f"{letter.entry_id}  {letter.stream}/{letter.group}  job {letter.job_id}  {age} ago  "
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
@operator_options
async def show_(keys: GroupKeys, entry_id: str, machine: bool, settings: ReaperSettings) -> None:
    """Show a dead letter with its payload and history."""
    check_ids([entry_id])
    async with connected(settings, keys) as (client, _):
        await check_exists(client, keys)
        letter = await find(client, keys, entry_id)
    if letter is None:
        raise NotPossibleError(f"{_missing(keys, [entry_id])} `reaper dead-letters list {keys.pair}` lists all.")
    if machine:
        show_json(letter.as_json())
    else:
        show(*_lines_of(letter))


def _missing(keys: GroupKeys, ids: list[str]) -> str:
    """Return a sentence about dead letters that do not exist."""
    return f"dead letter {', '.join(ids)} of {keys.pair} does not exist: it was redriven or deleted."


def _lines_of(letter: DeadLetter) -> list[str]:
    facts = replace(letter, payload=[]).as_json() | {"consumers": ", ".join(letter.consumers), "fields": ""}
    lines = [f"{name:<12} {value}" for name, value in facts.items() if value != ""]
    lines += ["", "fields", *(f"  {_value(name)} = {_value(value)}" for name, value in letter.payload[:MOST_FIELDS])]
    left_out = len(letter.payload) - MOST_FIELDS
    return lines + ([f"  … and {counted(left_out, 'more field')}: -o json prints all"] if left_out > 0 else [])


def _value(value: bytes) -> str:
    """Return a name or value as JSON, cut to a readable length."""
    shown = json.dumps(json_value(value), ensure_ascii=False)
    if len(shown) <= LONGEST_VALUE:
        return shown
    return f"{shown[:LONGEST_VALUE]}… ({len(value):,} bytes in all: -o json prints them)"


# --- delete -------------------------------------------------------------------------------------------------


@dead_letters.command(
    "delete",
    epilog=help_end(
        "reaper dead-letters delete orders/billing 1766000000000-0",
        "reaper dead-letters delete orders/billing --older-than 30d --dry-run",
        ok="all selected dead letters are deleted, also if there are none",
        no="the group or a named dead letter does not exist, or you did not confirm",
    ),
)
@group_argument
@ids_argument
@reason_option
@all_option
@click.option("--older-than", type=DurationType(), help="Only jobs that were dead-lettered longer ago.")
@click.option("--dry-run", is_flag=True, help="Print the dead letters that would be deleted, and delete nothing.")
@yes_option
@json_option
@operator_options
async def delete_(
    keys: GroupKeys,
    ids: tuple[str, ...],
    reason: str | None,
    everything: bool,
    older_than: float | None,
    dry_run: bool,
    yes: bool,
    machine: bool,
    settings: ReaperSettings,
) -> bool:
    """Delete dead letters for good.

    Select them by ID, by --reason and --older-than, or with --all. The jobs cannot be redriven afterwards.
    """
    what = choose(ids, reason=reason, everything=everything, has_age=older_than is not None)
    async with connected(settings, keys) as (client, _):
        await check_exists(client, keys)
        now_ms = await server_ms(client)
        meant = what if older_than is None else replace(what, before_ms=now_ms - round(older_than * 1000))
        # The confirmation counts the letters that are deleted: later ones stay.
        letters = []
        async for letter in select(client, keys, meant):
            letters.append(letter.entry_id)
            if dry_run and not machine:
                show(_list_line(letter, now_ms))
        if letters and not (yes or dry_run):
            confirm(f"Delete {counted(len(letters), 'dead letter')} of {keys.pair} for good?")
        deleted = len(letters) if dry_run else await delete(client, keys, letters)
    absent = [one for one in what.ids if one not in letters]
    if machine:
        show_json({"dry_run": dry_run, "deleted": deleted, "missing": absent})
    else:
        show(f"{keys.pair}: {counted(deleted, 'dead letter')} {'would be ' if dry_run else ''}deleted")
        if absent:
            show(_missing(keys, absent), err=True)
    return not absent
