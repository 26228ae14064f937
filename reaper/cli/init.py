"""``reaper groups init``: creates streams, groups and a settings file."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import anyio
import click
from redis.asyncio import Redis

from reaper.cli.doctor import finding_line
from reaper.cli.options import connected, json_option
from reaper.layout import layout_refusal
from reaper.operations.doctor import diagnose
from reaper.operations.examination import examine
from reaper.operations.findings import Finding, Level
from reaper.operations.groups import FROM_NOW, FROM_START, create_group
from reaper.operations.settings_file import group_tables, write_settings
from reaper.settings import GroupSettings, ReaperSettings
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import Redelivery
from workers.runtime.options import NEGATIVE_EXIT, GroupType, errors_as_sentences, help_end, settings_options
from workers.runtime.printing import show, show_json
from workers.runtime.settings import load_settings

GroupT = TypeVar("GroupT", bound=GroupSettings)

_ASKED = ("redis_url", "namespace", "visibility_timeout", "max_deliveries", "redelivery")
_STARTS = {"start": FROM_START, "now": FROM_NOW}
_FILE = Path("reaper.toml")
_OF_REPLICAS = "replicas"
"""The check that needs a running replica, which does not exist yet."""


@click.command(
    "init",
    epilog=help_end(
        "reaper groups init orders/billing",
        "reaper groups init orders/billing mail/sender -o json",
        ok="the groups exist, and no check failed",
        no="at least one check failed",
    ),
)
@click.argument("groups", metavar="STREAM/GROUP…", nargs=-1, required=True, type=GroupType())
@click.option(
    "--from",
    "begin",
    type=click.Choice(sorted(_STARTS)),
    default="start",
    show_default=True,
    help="Where a created group starts: at the start of the stream, or at entries that are added from now on.",
)
@settings_options(ReaperSettings, exclude=ReaperSettings.model_fields.keys() - set(_ASKED))
@json_option
@click.pass_context
def init(
    context: click.Context,
    /,
    groups: Sequence[GroupKeys],
    begin: str,
    config: Path | None,
    machine: bool,
    **flags: str | None,
) -> None:
    """Create streams and groups, and write a settings file.

    The file is `reaper.toml`, or the name in --config. An existing file is never changed: it must contain the groups.
    The command then makes the checks of `reaper doctor`.
    """
    with errors_as_sentences():
        file = config or _FILE
        wanted = load_settings(ReaperSettings, flags={**flags, "groups": tuple(keys.pair for keys in groups)})
        if wanted.patterns:
            pair = wanted.patterns[0].keys.pair
            raise ConfigurationError(f"cannot create {pair!r}: it is a pattern. Write a pattern in the settings file.")
        is_there = file.exists()
        settings = _settings_in(file, wanted, flags) if is_there else wanted
        created, settings, findings = anyio.run(_begin, settings, wanted, _STARTS[begin], is_there)
        if not is_there:
            write_settings(file, settings)
    if machine:
        show_json(
            {
                "groups": [{"group": group, "created": was_created} for group, was_created in created.items()],
                "config": {"file": str(file), "written": not is_there},
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        show(*(f"{group}: {'created' if is_new else 'already exists'}" for group, is_new in created.items()))
        show(f"{file}: {'already contains the groups' if is_there else 'written'}")
        show(*(_on_sharing(group) for group in settings.groups if group.redelivery is Redelivery.RETRY_STREAM))
        show(*(finding_line(finding) for finding in findings if finding.level is not Level.OK))
        show("", "next:", *(f"  {line}" for line in _next_steps(file)))
    context.exit(NEGATIVE_EXIT if any(finding.level is Level.WRONG for finding in findings) else 0)


def _settings_in(file: Path, wanted: ReaperSettings, flags: dict[str, str | None]) -> ReaperSettings:
    """Return the settings of an existing file. Raises ConfigurationError if a wanted group is missing in it."""
    settings = load_settings(ReaperSettings, flags=flags, file=file)
    there = {group.keys.pair for group in settings.groups}
    missing = [group for group in wanted.watched if group.keys.pair not in there]
    if missing:
        several = _streams_of_several((*settings.groups, *missing))
        missing = [_sharing(group) if group.stream in several and not _is_asked(wanted) else group for group in missing]
        raise ConfigurationError(
            f"settings file {file} exists, and does not contain {missing[0].keys.pair!r}. Add these lines, or write "
            "another file (--config FILE):",
            *group_tables(missing),
        )
    return settings


async def _begin(
    settings: ReaperSettings, wanted: ReaperSettings, start: str, is_written: bool
) -> tuple[dict[str, bool], ReaperSettings, list[Finding]]:
    """Create missing groups. Return which groups were created, the settings that fit, and the doctor's findings."""
    async with connected(settings) as (client, server):
        created = {group.keys.pair: await create_group(client, group.keys, start) for group in wanted.groups}
        if not is_written:
            settings = await _fitted(client, settings)
        findings = diagnose(await examine(client, settings, server))
    return created, settings, [finding for finding in findings if finding.check != _OF_REPLICAS]


async def _fitted(client: Redis, settings: ReaperSettings) -> ReaperSettings:
    """Return settings whose redelivery fits each stream, unless the user chose one."""
    if _is_asked(settings):
        return settings
    groups = [
        _sharing(group) if await layout_refusal(client, group.stream, settings.redelivery) else group
        for group in settings.groups
    ]
    return settings.model_copy(update={"groups": tuple(groups)})


def _is_asked(settings: ReaperSettings) -> bool:
    """Whether the user chose how jobs are redelivered."""
    return "redelivery" in settings.model_fields_set


def _sharing(group: GroupT) -> GroupT:
    """Return the group with the redelivery for a stream that several groups read."""
    return group.model_copy(update={"redelivery": Redelivery.RETRY_STREAM})


def _streams_of_several(groups: Iterable[GroupSettings]) -> set[str]:
    return {stream for stream, number in Counter(group.stream for group in groups).items() if number > 1}


def _on_sharing(group: GroupSettings) -> str:
    return (
        f"{group.keys.pair}: recovered jobs go to {group.keys.retry}. stream-reaper's workers read it. Third-party "
        "workers must read it, too."
    )


def _next_steps(file: Path) -> list[str]:
    name = shlex.quote(str(file))
    steps = (
        (f"reaper run --config {name}", "start two or three replicas: they share the groups"),
        (f"reaper status --config {name}", "show the replicas, the groups and their jobs"),
    )
    width = max(len(step) for step, _ in steps)
    return [f"{step:<{width}}  # {why}" for step, why in steps]
