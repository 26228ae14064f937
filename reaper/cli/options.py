"""What the operator's commands share: options, a connection, and finding the pair that is meant."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from inspect import iscoroutinefunction, unwrap
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import anyio
import click
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.foreign_keys import foreign_keys
from reaper.operations.groups import check_exists, choose_pair, known_pairs, matching
from reaper.replicas import read_replicas
from reaper.settings import ReaperSettings
from workers.protocol.address import shown_address
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError, UnreachableError
from workers.protocol.keys import GroupKeys
from workers.protocol.meaning import in_words, is_wrong_type
from workers.protocol.server_check import check_server
from workers.runtime.options import errors_as_sentences, json_flag, settings_options
from workers.runtime.settings import load_settings

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

json_option = json_flag()


def reaper_settings(asked: Collection[str]) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds ``--config`` and an option for each setting in ``asked``.

    The command gets ``settings``, read from them, the environment and the file; it may be ``async``. Our errors, its
    own included, are printed as sentences.
    """

    def decorate(command: CommandT) -> CommandT:
        @wraps(command)
        def with_settings(*args: Any, config: Path | None, **given: Any) -> Any:
            flags = {name: given.pop(name) for name in asked}
            with errors_as_sentences():
                settings = load_settings(ReaperSettings, flags=flags, file=config)
                run = partial(command, *args, settings=settings, **given)
                return anyio.run(run) if iscoroutinefunction(unwrap(command)) else run()

        others = ReaperSettings.model_fields.keys() - set(asked)
        return settings_options(ReaperSettings, exclude=others)(cast("CommandT", with_settings))

    return decorate


_WHERE = ("redis_url", "namespace", "groups", "journal")
operator_options = reaper_settings(_WHERE)
"""The few settings an operator's command needs: where Redis is, and which pairs there are."""
status_options = reaper_settings((*_WHERE, "observe"))
"""The same, and whether observers are asked for what they have seen."""


class Wanted(NamedTuple):
    """What names a pair, as far as it was given."""

    stream: str | None
    group: str | None


def pair_options(command: CommandT) -> CommandT:
    """Add ``--stream`` and ``--group``, which name a pair where several are known; the command gets ``pair``."""

    @wraps(command)
    def with_pair(*args: Any, stream: str | None, group: str | None, **given: Any) -> Any:
        return command(*args, pair=Wanted(stream, group), **given)

    with_group = click.option("--group", metavar="GROUP", help="The consumer group, or stream/group.")(with_pair)
    return click.option("--stream", metavar="STREAM", help="The stream.")(cast("CommandT", with_group))


@asynccontextmanager
async def connected(settings: ReaperSettings, named: Wanted | None = None) -> AsyncIterator[tuple[Redis, str]]:
    """Yield a client and what the server is. ``named``: what the command line names beside the settings.

    Raises, also later on, UnreachableError, UnsupportedServerError, or ConfigurationError where a key of ours holds
    something foreign.
    """
    client = commands_client(settings.redis_url)
    try:
        server = str(await check_server(client, settings.redis_url))
        yield client, server
    except RedisError as error:
        found = await _foreign(client, settings, named) if is_wrong_type(error) else ""
        if found:
            raise ConfigurationError(f"{found}: somebody else uses this name. Rename the one or the other.") from error
        raise UnreachableError(f"Redis at {shown_address(settings.redis_url)!r} failed: {in_words(error)}") from error
    finally:
        await client.aclose()


async def _foreign(client: Redis, settings: ReaperSettings, named: Wanted | None) -> str:
    with suppress(RedisError):
        found = await foreign_keys(client, [settings.namespace_keys, *(group.keys for group in settings.groups)])
        return found or await foreign_keys(client, await _meant(client, settings, named))
    return ""


async def _meant(client: Redis, settings: ReaperSettings, named: Wanted | None) -> list[GroupKeys]:
    pairs = await known(client, settings)
    if named is not None:
        with suppress(ConfigurationError):
            pairs.append(choose_pair(pairs, stream=named.stream, group=named.group))
    return pairs


async def known(client: Redis, settings: ReaperSettings) -> list[GroupKeys]:
    """Return the pairs that the settings or the replicas' heartbeats name."""
    return known_pairs(settings.groups, await read_replicas(client, settings.namespace_keys))


async def find_pair(client: Redis, settings: ReaperSettings, wanted: Wanted) -> GroupKeys:
    """Return the pair that is meant, certain to exist. Raises ConfigurationError."""
    keys = choose_pair(await known(client, settings), stream=wanted.stream, group=wanted.group)
    await check_exists(client, keys)
    return keys


async def find_pairs(client: Redis, settings: ReaperSettings, wanted: Wanted) -> list[GroupKeys]:
    """Return every known pair that may be meant; one that is unknown must be named in full."""
    found = matching(await known(client, settings), stream=wanted.stream, group=wanted.group)
    return found or [await find_pair(client, settings, wanted)]
