"""``reaper init``: from an empty Redis to a group that can be watched."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import anyio
import click
from redis.asyncio import Redis

from reaper.cli.doctor import FINDINGS_EXIT, finding_line
from reaper.cli.options import connected, json_option
from reaper.layout import layout_refusal
from reaper.operations.doctor import diagnose
from reaper.operations.examination import examine
from reaper.operations.findings import Finding, Level
from reaper.operations.groups import FROM_NOW, FROM_START, create_group
from reaper.operations.settings_file import group_tables, write_settings
from reaper.settings import GroupSettings, ReaperSettings
from workers.protocol.address import holds_login
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import Redelivery
from workers.runtime.options import errors_as_sentences, examples, settings_options
from workers.runtime.printing import show, show_json
from workers.runtime.settings import load_settings

GroupT = TypeVar("GroupT", bound=GroupSettings)

_ASKED = ("redis_url", "namespace", "visibility_timeout", "max_deliveries", "redelivery")
_STARTS = {"start": FROM_START, "now": FROM_NOW}
_FILE = Path("reaper.toml")
_OF_REPLICAS = ("leader", "replicas")
"""Checks that find nothing before a replica runs, as none does yet."""


@click.command("init", epilog=examples("reaper init orders/billing", "reaper init orders/billing mail/sender --json"))
@click.argument("pairs", metavar="STREAM/GROUP…", nargs=-1, required=True)
@click.option(
    "--from",
    "begin",
    type=click.Choice(sorted(_STARTS)),
    default="start",
    show_default=True,
    help="What a group that is created gets of its stream: everything from its start, or what is added from now on.",
)
@settings_options(ReaperSettings, exclude=ReaperSettings.model_fields.keys() - set(_ASKED))
@json_option
@click.pass_context
def init(
    context: click.Context, /, pairs: Sequence[str], begin: str, config: Path | None, machine: bool, **flags: str | None
) -> None:
    """Create streams and groups that are missing, write a settings file, and look for what is wrong.

    The file is `reaper.toml`, or the one that --config names. One that is there already is never changed; it does if
    it names the groups. Exit code 0 all is well, 1 there are findings, 2 not possible.
    """
    with errors_as_sentences():
        file = config or _FILE
        wanted = load_settings(ReaperSettings, flags={**flags, "groups": pairs})
        is_there = file.exists()
        settings = _settings_in(file, wanted, flags) if is_there else wanted
        created, settings, findings = anyio.run(_begin, settings, wanted, _STARTS[begin], is_there)
        if not is_there:
            write_settings(file, settings)
    if machine:
        show_json(
            {
                "groups": [{"pair": pair, "created": was_created} for pair, was_created in created.items()],
                "config": {"file": str(file), "written": not is_there},
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        show(*(f"{pair}: {'created' if was_created else 'was there'}" for pair, was_created in created.items()))
        show(f"{file}: {'names the groups already' if is_there else 'written'}")
        show(*(_on_sharing(group) for group in settings.groups if group.redelivery is Redelivery.RETRY_STREAM))
        show(*(finding_line(finding) for finding in findings if finding.level is not Level.OK))
        show("", "next:", *(f"  {line}" for line in _next_steps(file, settings)))
    context.exit(FINDINGS_EXIT if any(finding.level is Level.WRONG for finding in findings) else 0)


def _settings_in(file: Path, wanted: ReaperSettings, flags: dict[str, str | None]) -> ReaperSettings:
    """Return the settings of a file that names what is wanted. Raises ConfigurationError where it does not."""
    settings = load_settings(ReaperSettings, flags=flags, file=file)
    there = {group.keys.pair for group in settings.groups}
    missing = [group for group in wanted.watched if group.keys.pair not in there]
    if missing:
        several = _streams_of_several((*settings.groups, *missing))
        missing = [_sharing(group) if group.stream in several and not _is_asked(wanted) else group for group in missing]
        raise ConfigurationError(
            f"settings file {file} is there already, and does not name {missing[0].keys.pair}: add these lines to it, "
            "or have another one written (--config FILE).",
            *group_tables(missing),
        )
    return settings


async def _begin(
    settings: ReaperSettings, wanted: ReaperSettings, start: str, is_written: bool
) -> tuple[dict[str, bool], ReaperSettings, list[Finding]]:
    """Create what is missing. Return which groups were, the settings that fit, and what the doctor finds."""
    async with connected(settings) as (client, server):
        created = {group.keys.pair: await create_group(client, group.keys, start) for group in wanted.groups}
        if not is_written:
            settings = await _fitted(client, settings)
        findings = diagnose(await examine(client, settings, server))
    return created, settings, [finding for finding in findings if finding.check not in _OF_REPLICAS]


async def _fitted(client: Redis, settings: ReaperSettings) -> ReaperSettings:
    """Return settings whose policies fit their streams, unless somebody has said which policy he wants."""
    if _is_asked(settings):
        return settings
    groups = [
        _sharing(group) if await layout_refusal(client, group.stream, settings.redelivery) else group
        for group in settings.groups
    ]
    return settings.model_copy(update={"groups": tuple(groups)})


def _is_asked(settings: ReaperSettings) -> bool:
    """Tell whether somebody has said how jobs are to be given back."""
    return "redelivery" in settings.model_fields_set


def _sharing(group: GroupT) -> GroupT:
    """Return a group with the policy for a stream that is not for it alone."""
    return group.model_copy(update={"redelivery": Redelivery.RETRY_STREAM})


def _streams_of_several(groups: Iterable[GroupSettings]) -> set[str]:
    return {stream for stream, number in Counter(group.stream for group in groups).items() if number > 1}


def _on_sharing(group: GroupSettings) -> str:
    return (
        f"{group.keys.pair}: what is given back goes to {group.keys.retry}, which our workers read, too; others have to"
    )


def _next_steps(file: Path, settings: ReaperSettings) -> list[str]:
    first = settings.groups[0]
    name = shlex.quote(str(file))
    steps = (
        (f"reaper run --config {name}", "as many replicas as you like: one leads"),
        (f"reaper status --config {name}", "who leads, what waits, what was recovered"),
        (f"{_redis_cli(settings)} XADD {shlex.quote(first.stream)} '*' order 17", "a job for your workers"),
    )
    width = max(len(step) for step, _ in steps)
    return [f"{step:<{width}}  # {why}" for step, why in steps]


def _redis_cli(settings: ReaperSettings) -> str:
    """Return how to reach the same server, as far as a plain address without a password says it."""
    url = settings.redis_url
    is_plain = url.startswith("redis://") and not holds_login(url) and "?" not in url
    elsewhere = url != ReaperSettings.model_fields["redis_url"].default
    return f"redis-cli -u {shlex.quote(url)}" if is_plain and elsewhere else "redis-cli"
