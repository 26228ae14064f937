"""The ``reaper`` command. Commands parse, build settings, call one function and map its result to an exit code."""

import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from reaper.cli.acl import acl
from reaper.cli.dead_letters import dead_letters
from reaper.cli.doctor import doctor
from reaper.cli.explain import explain_command
from reaper.cli.lazy import LazyGroup
from reaper.cli.leader import leader
from reaper.cli.options import connected, find_pair, known, operator_options, operator_settings
from reaper.cli.selection import json_option
from reaper.cli.top import top
from reaper.operations import groups
from reaper.operations.judgement import judge
from reaper.operations.snapshot import take_snapshot
from reaper.operations.status_text import as_json, status_text
from reaper.settings import ReaperSettings, check_groups
from workers.protocol.errors import StreamReaperError
from workers.runtime.options import (
    USAGE_EXIT,
    errors_as_sentences,
    examples,
    log_format_option,
    log_level_option,
    log_to_stderr,
    settings_options,
)
from workers.runtime.settings import load_settings
from workers.telemetry.setup import exported

DEGRADED_EXIT = 1


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

    Exit code 0 done; 2 not possible: words, settings or Redis do not let it, and a line says why. Some use 1.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False


# --- run ----------------------------------------------------------------------------------------------------


@main.command(
    epilog=examples("reaper run --groups orders/billing", "reaper run --config reaper.toml --health-port 8080")
)
@settings_options(ReaperSettings)
@log_level_option
@log_format_option
def run(config: Path | None, log_level: str, log_format: str, **flags: Any) -> None:
    """Run one replica; any number of them elect one leader.

    SIGTERM or SIGINT leaves leadership and ends it, SIGHUP reads the settings file again (groups and their defaults).
    Exit code 0 it was told to end, 2 it could not begin.
    """
    log_to_stderr(logging.getLevelName(log_level.upper()), log_format)
    with errors_as_sentences():
        from reaper.process import serve  # operators' commands need no service

        def load() -> ReaperSettings:
            return check_groups(load_settings(ReaperSettings, flags=flags, file=config))

        settings = load()
        with exported("reaper", shows_metrics=settings.health_port is not None):
            anyio.run(serve, settings, load if config else None)


# --- status -------------------------------------------------------------------------------------------------


@main.command(epilog=examples("reaper status", "reaper status --watch 1", "reaper status --json"))
@operator_options
@click.option("--json", "machine", is_flag=True, help="Print JSON (with --watch: one document a line).")
@click.option("--watch", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Print again and again.")
@click.pass_context
def status(context: click.Context, /, config: Path | None, machine: bool, watch: float | None, **flags: Any) -> None:
    """Show leader, groups and what is wrong. Exit code 0 healthy, 1 degraded, 2 unreachable."""
    with errors_as_sentences():
        settings = operator_settings(config, flags)
    context.exit(anyio.run(_status, settings, machine, watch))


async def _status(settings: ReaperSettings, machine: bool, watch: float | None) -> int:
    while True:
        code, text = await _look(settings, machine)
        if watch and not machine:
            click.clear()
        click.echo(text, err=code == USAGE_EXIT and not machine)
        if not watch:
            return code
        await anyio.sleep(watch)


async def _look(settings: ReaperSettings, machine: bool) -> tuple[int, str]:
    """Return the exit code and what to print."""
    try:
        async with connected(settings) as (client, version):
            snapshot = await take_snapshot(client, settings.namespace_keys, settings.watched, version)
    except StreamReaperError as error:
        document = {"status": "unreachable", "error": str(error)}
        return USAGE_EXIT, json.dumps(document) if machine else f"error: {error}"
    problems = judge(snapshot)
    text = json.dumps(as_json(snapshot, problems)) if machine else status_text(snapshot, problems)
    return DEGRADED_EXIT if problems else 0, text


# --- pause, resume, forget ----------------------------------------------------------------------------------

_group_argument = click.argument("group", metavar="GROUP")
_stream_option = click.option(
    "--stream", metavar="STREAM", help="The group's stream, where several have a group of this name."
)


@main.command(epilog=examples("reaper pause billing", "reaper pause billing --stream orders --json"))
@_group_argument
@_stream_option
@json_option
@operator_options
def pause(group: str, stream: str | None, machine: bool, config: Path | None, **flags: Any) -> None:
    """Stop all recovery in GROUP until `reaper resume GROUP`; workers go on.

    Exit code 0 paused, also where it was before; 2 not possible.
    """
    _run(_set_paused, group, stream, config, flags, True, machine)


@main.command(epilog=examples("reaper resume billing"))
@_group_argument
@_stream_option
@json_option
@operator_options
def resume(group: str, stream: str | None, machine: bool, config: Path | None, **flags: Any) -> None:
    """Let recovery in GROUP go on after `reaper pause GROUP`.

    Exit code 0 it goes on, also where it did before; 2 not possible.
    """
    _run(_set_paused, group, stream, config, flags, False, machine)


async def _set_paused(settings: ReaperSettings, group: str, stream: str | None, paused: bool, machine: bool) -> None:
    async with connected(settings) as (client, _):
        keys = await find_pair(client, settings, stream, group)
        changed = await groups.set_paused(client, keys, paused)
    state = "paused" if paused else "resumed"
    if machine:
        click.echo(json.dumps({"pair": keys.pair, "paused": paused, "changed": changed}))
        return
    click.echo(f"{keys.pair}: {state}" + ("" if changed else f" (it was {state} already)"))


@main.command(epilog=examples("reaper forget billing", "reaper forget billing --dead-letters --yes --json"))
@_group_argument
@_stream_option
@click.option("--dead-letters", "with_dead_letters", is_flag=True, help="Remove the dead letters too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@operator_options
def forget(
    group: str,
    stream: str | None,
    with_dead_letters: bool,
    yes: bool,
    machine: bool,
    config: Path | None,
    **flags: Any,
) -> None:
    """Remove what is kept in Redis for GROUP: fence, agreement, suspects, schedule, retry stream, journal.

    Jobs that wait there become ready first. Stop the replicas that serve the group, and for policy retry-stream the
    workers that read it, before. Exit code 0 done, 1 you said no, 2 not possible.
    """
    _run(_forget, group, stream, config, flags, with_dead_letters, yes, machine)


async def _forget(
    settings: ReaperSettings, group: str, stream: str | None, with_dead_letters: bool, yes: bool, machine: bool
) -> None:
    async with connected(settings) as (client, _):
        keys = await find_pair(client, settings, stream, group)
        if not yes:
            also = ", dead letters included" if with_dead_letters else ""
            click.confirm(f"Remove what is kept for {keys.pair}{also}?", abort=True, err=True)
        forgotten = await groups.forget(
            client,
            keys,
            namespace=settings.namespace,
            dead_letters=with_dead_letters,
            known=await known(client, settings),
            journal=settings.journal,
            journal_maxlen=settings.journal_maxlen,
        )
    if machine:
        click.echo(json.dumps({"pair": keys.pair, **asdict(forgotten)}))
        return
    if forgotten.made_ready:
        click.echo(f"{keys.pair}: {forgotten.made_ready} waiting jobs are ready now")
    for key in forgotten.removed:
        click.echo(f"removed {key}")
    for key in forgotten.kept:
        click.echo(f"kept    {key}")
    if not forgotten.removed:
        click.echo(f"{keys.pair}: nothing was there to remove")


def _run(
    function: Callable[..., Awaitable[None]],
    group: str,
    stream: str | None,
    config: Path | None,
    flags: dict[str, Any],
    *rest: Any,
) -> None:
    with errors_as_sentences():
        anyio.run(partial(function, operator_settings(config, flags), group, stream, *rest))


# --- commands of other modules ------------------------------------------------------------------------------

main.add_command(dead_letters)
main.add_command(acl)
main.add_command(doctor)
main.add_command(explain_command)
main.add_command(leader)
main.add_command(top)
main.add_lazy("drill", "reaper.drill.cli", "Kill workers and leaders on purpose, and account for every job.")
main.add_lazy("demo", "reaper.drill.cli", "Show the failure drill in three acts: without recovery, reaper, embedded.")
main.add_lazy("pipeline", "reaper.pipeline.cli", "Bring journals into a lake of Parquet files, with Spark.")
main.add_lazy("compare", "reaper.pipeline.compare.command", "Play the same faults in every recovery mode, and compare.")
