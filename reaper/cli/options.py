"""Arguments and options that several commands have, and their connection to Redis."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial, wraps
from inspect import iscoroutinefunction, unwrap
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import click
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.groups import check_exists, known_groups
from reaper.settings import ReaperSettings
from workers.protocol.address import shown_address
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError, UnreachableError
from workers.protocol.keys import GroupKeys
from workers.protocol.meaning import in_words, is_wrong_type
from workers.protocol.server import check_server
from workers.runtime.options import NEGATIVE_EXIT, GroupType, errors_as_sentences, format_option, settings_options
from workers.runtime.printing import show, show_json
from workers.runtime.settings import load_settings

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


group_argument = click.argument("keys", metavar="STREAM/GROUP", type=GroupType())
ids_argument = click.argument("ids", nargs=-1, metavar="[ID]…")
reason_option = click.option("--reason", metavar="REASON", help="Only dead letters with this reason.")
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters of the group.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
json_option = format_option()


def reaper_settings(asked: Collection[str], helps: Mapping[str, str] | None = None) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds ``--config`` and an option for each setting in ``asked``.

    The command gets ``settings``, and can be ``async``. If it returns False, the exit code is that of a negative
    result. Errors are printed as sentences. ``helps`` replaces the help of options that mean something else here.
    """

    def decorate(command: CommandT) -> CommandT:
        @wraps(command)
        def with_settings(*args: Any, config: Path | None, **given: Any) -> Any:
            flags = {name: given.pop(name) for name in asked}
            with errors_as_sentences():
                settings = load_settings(ReaperSettings, flags=flags, file=config)
                run = partial(command, *args, settings=settings, **given)
                result = anyio.run(run) if iscoroutinefunction(unwrap(command)) else run()
            if result is False:
                click.get_current_context().exit(NEGATIVE_EXIT)

        others = ReaperSettings.model_fields.keys() - set(asked)
        return settings_options(ReaperSettings, exclude=others, helps=helps)(cast("CommandT", with_settings))

    return decorate


group_options = reaper_settings(("redis_url",))
"""Settings of a command for one group, which no namespace concerns."""
namespace_options = reaper_settings(("redis_url", "namespace"))
_GROUPS_HELP = "Groups without a live replica, as STREAM/GROUP,…; groups of live replicas are included anyway."
groups_options = reaper_settings(("redis_url", "namespace", "groups"), {"groups": _GROUPS_HELP})
"""The same for a command that reads all groups."""
_OBSERVE_HELP = "Show the replicas that run with --observe."
replicas_options = reaper_settings(("redis_url", "namespace", "observe"), {"observe": _OBSERVE_HELP})
status_options = reaper_settings(
    ("redis_url", "namespace", "groups", "observe"), {"groups": _GROUPS_HELP, "observe": _OBSERVE_HELP}
)


def show_result(document: Any, *lines: str, machine: bool) -> None:
    """Print a document for machines, or lines for people."""
    if machine:
        show_json(document)
    else:
        show(*lines)


@asynccontextmanager
async def connected(settings: ReaperSettings) -> AsyncIterator[tuple[Redis, str]]:
    """Yield a client and the server's name and version.

    Raises UnreachableError, UnsupportedServerError, or ConfigurationError if a key has another type.
    """
    client = commands_client(settings.redis_url)
    try:
        server = str(await check_server(client, settings.redis_url))
        yield client, server
    except RedisError as error:
        kind = ConfigurationError if is_wrong_type(error) else UnreachableError
        raise kind(f"Redis at {shown_address(settings.redis_url)!r} failed: {in_words(error)}") from error
    finally:
        await client.aclose()


async def known_or_named(client: Redis, settings: ReaperSettings, named: GroupKeys | None) -> list[GroupKeys]:
    """Return the named group, or all known groups. Raises NotPossibleError if the named group does not exist."""
    if named is None:
        return await known_groups(client, settings)
    await check_exists(client, named)
    return [named]
