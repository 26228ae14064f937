"""The command ``reaper groups init`` creates streams and groups, and writes the first settings file."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio
import click

from reaper.cli.options import connected, json_option
from reaper.operations.groups import FROM_NOW, FROM_START, create_group
from reaper.settings import ReaperSettings, WatchedGroup
from workers.protocol.address import holds_login
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import GroupKeys
from workers.runtime.options import GroupType, errors_as_sentences, help_end, settings_options
from workers.runtime.printing import show, show_json
from workers.runtime.quantities import written
from workers.runtime.settings import load_settings

_ASKED = ("redis_url", "namespace", "visibility_timeout", "max_deliveries", "redelivery")
_STARTS = {"start": FROM_START, "now": FROM_NOW}
_FILE = Path("reaper.toml")
_OWNER_ONLY = 0o600
_HEAD = """\
# reaper run --config {file}
# SIGHUP reads the groups again. Flags and the environment (REAPER_…) override this file.
{address}
namespace = {namespace}
"""
_GROUP = """\

[[groups]]
stream = {stream}
group = {group}
visibility_timeout = {visibility_timeout}  # longer than the slowest job
max_deliveries = {max_deliveries}  # of a job; then it is a dead letter
redelivery = {redelivery}
"""
_NEXT = """\

next:
  reaper doctor --config {file}  # check the server, permissions, settings and groups
  reaper run --config {file}     # start two or three replicas: they share the groups
  reaper status --config {file}  # show the replicas, the groups and their jobs"""


@click.command(
    "init",
    epilog=help_end(
        "reaper groups init orders/billing",
        "reaper groups init orders/billing mail/sender -o json",
        ok="the groups exist, and the settings file contains them",
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
def init(groups: Sequence[GroupKeys], begin: str, config: Path | None, machine: bool, **flags: str | None) -> None:
    """Create streams and groups, and write a settings file.

    The file is `reaper.toml`, or the name in --config. An existing file is never changed. It must contain the groups.
    """
    with errors_as_sentences():
        file = config or _FILE
        settings = load_settings(ReaperSettings, flags={**flags, "groups": tuple(keys.pair for keys in groups)})
        if settings.patterns:
            pair = settings.patterns[0].keys.pair
            raise ConfigurationError(f"cannot create {pair!r}: it is a pattern. Write a pattern in the settings file.")
        is_there = file.exists()
        if is_there:
            _check_named(file, settings, load_settings(ReaperSettings, flags=flags, file=file))
        created = anyio.run(_create, settings, _STARTS[begin])
        if not is_there:
            _write(file, settings)
    if machine:
        show_json(
            {
                "groups": [{"group": group, "created": is_new} for group, is_new in created.items()],
                "config": {"file": str(file), "written": not is_there},
            }
        )
        return
    show(*(f"{group}: {'created' if is_new else 'already exists'}" for group, is_new in created.items()))
    show(f"{file}: {'already contains the groups' if is_there else 'written'}")
    show(*_NEXT.format(file=shlex.quote(str(file))).splitlines())


def _check_named(file: Path, wanted: ReaperSettings, settings: ReaperSettings) -> None:
    """Raise ConfigurationError if a wanted group is missing in an existing file."""
    there = {group.keys.pair for group in settings.groups}
    missing = [group for group in wanted.watched if group.keys.pair not in there]
    if missing:
        raise ConfigurationError(
            f"settings file {file} exists, and does not contain {missing[0].keys.pair!r}. Add these lines, or write "
            "another file (--config FILE):",
            *_tables(missing).splitlines(),
        )


async def _create(settings: ReaperSettings, start: str) -> dict[str, bool]:
    """Create missing groups. Return which groups were created."""
    async with connected(settings) as (client, _):
        return {group.keys.pair: await create_group(client, group.keys, start) for group in settings.groups}


def _write(file: Path, settings: ReaperSettings) -> None:
    try:
        file.touch(mode=_OWNER_ONLY, exist_ok=False)
        file.write_text(settings_text(str(file), settings), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write settings file {file}: {error.strerror}.") from error


def settings_text(name: str, settings: ReaperSettings) -> str:
    """Return the text of the settings file ``name``. It contains no password."""
    address = f"redis_url = {_quoted(settings.redis_url)}"
    if holds_login(settings.redis_url):
        address = "# redis_url holds a password: it comes from REAPER_REDIS_URL, or a file (REAPER_REDIS_URL_FILE)."
    head = _HEAD.format(file=name, address=address, namespace=_quoted(settings.namespace))
    return head + _tables(settings.watched)


def _tables(groups: Iterable[WatchedGroup]) -> str:
    return "".join(
        _GROUP.format(
            stream=_quoted(group.stream),
            group=_quoted(group.group),
            visibility_timeout=_quoted(written(group.visibility_timeout)),
            max_deliveries=group.max_deliveries,
            redelivery=_quoted(group.redelivery),
        )
        for group in groups
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # no name has the control characters that TOML rejects
