"""``reaper dead-letters``: list, show, redrive and purge what was given up."""

import json
from dataclasses import replace

import click

from reaper.cli.options import Wanted, connected, find_pair, find_pairs, json_option, operator_options, pair_options
from reaper.cli.redrive import redrive_dead_letters
from reaper.cli.selection import all_option, ids_argument, read_age_ms, reason_option
from reaper.operations.dead_letters import (
    DeadLetter,
    Selection,
    check_ids,
    choose,
    find,
    is_text,
    json_value,
    purge,
    select,
)
from reaper.operations.words import duration
from reaper.settings import ReaperSettings
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import counted
from workers.runtime.clock import server_ms
from workers.runtime.options import examples
from workers.runtime.printing import ask, show, show_json

MOST_FIELDS, LONGEST_VALUE = 200, 1_000
"""Fields of a dead letter that are shown to people, and bytes of a name or value."""


@click.group("dead-letters", epilog=examples("reaper dead-letters list", "reaper dead-letters redrive --all --dry-run"))
def dead_letters() -> None:
    """List, show, redrive or purge the jobs that were given up."""


dead_letters.add_command(redrive_dead_letters)


# --- list and show ------------------------------------------------------------------------------------------


@dead_letters.command(
    "list", epilog=examples("reaper dead-letters list billing", "reaper dead-letters list --reason timeout --json")
)
@click.argument("name", metavar="[GROUP]", required=False)
@pair_options
@reason_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many to print.")
@json_option
@operator_options
async def list_(
    name: str | None,
    pair: Wanted,
    reason: str | None,
    limit: int,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """List dead letters, oldest first, of every known group or of GROUP (which --group names, too).

    Exit code 0, also where there are none; 2 not possible.
    """
    if name is not None and pair.group not in (None, name):
        raise ConfigurationError(f"which group: {name!r}, or {pair.group!r} (--group)? Name one.")
    pair = pair._replace(group=pair.group or name)
    found: list[DeadLetter] = []
    more = False
    async with connected(settings, pair) as (client, _):
        for keys in await find_pairs(client, settings, pair):
            async for letter in select(client, keys, Selection(reason=reason)):
                if len(found) == limit:
                    more = True
                    break
                found.append(letter)
        now_ms = await server_ms(client)
    if machine:
        show_json([letter.as_json() for letter in found])
        return
    for letter in found:
        show(_list_line(letter, now_ms))
    if more:
        show(f"… and more: raise --limit ({limit})", err=True)
    elif not found:
        show("no dead letters", err=True)


def _list_line(letter: DeadLetter, now_ms: int) -> str:
    age = duration(max(0, now_ms - letter.at_ms))
    error = f": {letter.error}" if letter.error else ""
    return (
        f"{letter.entry_id}  {letter.stream}/{letter.group}  job {letter.job_id}  {age} ago  "
        f"deliveries {letter.deliveries}  generation {letter.generation}  {letter.reason}{error}"
    )


@dead_letters.command("show", epilog=examples("reaper dead-letters show 1766000000000-0"))
@click.argument("entry_id", metavar="ID")
@pair_options
@json_option
@operator_options
async def show_(entry_id: str, pair: Wanted, machine: bool, settings: ReaperSettings) -> None:
    """Show one dead letter with its payload and history. Exit code 0, or 2 where it is not there."""
    check_ids([entry_id])
    async with connected(settings, pair) as (client, _):
        keys = await find_pair(client, settings, pair)
        letter = await find(client, keys, entry_id)
    if letter is None:
        raise ConfigurationError(
            f"{keys.dead} has no entry {entry_id}: it was redriven or purged, or belongs to another group."
        )
    if machine:
        show_json(letter.as_json())
    else:
        show(*_lines_of(letter))


def _lines_of(letter: DeadLetter) -> list[str]:
    facts = replace(letter, payload=[]).as_json()
    del facts["fields"]
    facts["consumers"] = ", ".join(letter.consumers)
    lines = [f"{name:<12} {value}" for name, value in facts.items() if value != ""]
    lines += ["", "fields"]
    lines += [f"  {_value(name)} = {_value(value)}" for name, value in letter.payload[:MOST_FIELDS]]
    left_out = len(letter.payload) - MOST_FIELDS
    return lines + ([f"  … and {counted(left_out, 'more field')}: --json prints all"] if left_out > 0 else [])


def _value(value: bytes) -> str:
    """Return a name or value as JSON, or its beginning and how long it is."""
    shown = json.dumps(json_value(value[:LONGEST_VALUE]), ensure_ascii=False)
    if len(value) <= LONGEST_VALUE:
        return shown
    if is_text(value):  # the cut may have gone through a character
        shown = json.dumps(value[:LONGEST_VALUE].decode(errors="ignore"), ensure_ascii=False)
    return f"{shown} … ({len(value):,} bytes in all: --json prints them)"


# --- purge --------------------------------------------------------------------------------------------------


@dead_letters.command(
    "purge",
    epilog=examples(
        "reaper dead-letters purge --older-than 30d --dry-run", "reaper dead-letters purge 1766000000000-0"
    ),
)
@ids_argument
@pair_options
@reason_option
@all_option
@click.option("--older-than", metavar="AGE", help="Only those that died longer ago: 90 (seconds), 15m, 12h, 30d.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted; delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@operator_options
async def purge_(
    ids: tuple[str, ...],
    pair: Wanted,
    reason: str | None,
    everything: bool,
    older_than: str | None,
    dry_run: bool,
    yes: bool,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Delete dead letters for good, by ID, by --reason and --older-than, or --all.

    Exit code 0, also where none was there; 2 not possible, or you did not confirm.
    """
    age_ms = read_age_ms(older_than) if older_than is not None else None
    what = choose(ids, reason=reason, everything=everything, has_age=age_ms is not None)
    async with connected(settings, pair) as (client, _):
        keys = await find_pair(client, settings, pair)
        now_ms = await server_ms(client)
        meant = replace(what, before_ms=None if age_ms is None else now_ms - age_ms)
        # What is counted here is what is deleted, and nothing that dies while the operator thinks.
        letters = []
        async for letter in select(client, keys, meant):
            letters.append(letter.entry_id)
            if dry_run and not machine:
                show(_list_line(letter, now_ms))
        if letters and not (yes or dry_run):
            _ask(keys, len(letters))
        purged = len(letters) if dry_run else await purge(client, keys, letters)
    if machine:
        show_json({"dry_run": dry_run, "purged": purged})
    else:
        show(f"{keys.pair}: {counted(purged, 'dead letter')} {'would be ' if dry_run else ''}deleted")


def _ask(keys: GroupKeys, number: int) -> None:
    show(f"This deletes {counted(number, 'dead letter')} of {keys.pair} for good.", err=True)
    typed = ask(f"Type {keys.pair} to go on")
    if typed != keys.pair:
        raise ConfigurationError("nothing was deleted: what you typed is not the name of the pair.")
