"""Trims journals in Redis up to the end of the newest batch that Spark has committed.

The lake may have newer entries, but Spark reads a batch again that was published and not committed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from reaper.pipeline.lake.history import check_history
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.redis_stream.client import key_of, printable
from reaper.pipeline.redis_stream.positions import Id, parse_id, show_id
from reaper.pipeline.settings import PipelineSettings
from workers.protocol.address import shown_address
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError, UnreachableError
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.server import check_server
from workers.runtime.settings import to_ms

TRIM_AT_ONCE = 10_000
"""Entries of one call, because Redis serves no other client meanwhile."""
RIGHTS = ("+time", "+xlen", "+xtrim")
"""The rights that a user needs in addition to those of ingestion, which only reads."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result for one stream."""

    stream: str
    removed: int
    left: int
    kept_because: str = ""
    """Reason why the stream was left alone. Empty if it was trimmed."""


async def trim(settings: PipelineSettings, layout: Layout, *, url: str, dead_letters: bool = False) -> list[Trimmed]:
    """Trim the journals that were ingested and, with ``dead_letters``, the dead-letter streams.

    Raises UnreachableError, and ConfigurationError if the lake has no entry of this Redis, or if tables and checkpoint
    do not fit.
    """
    check_history(layout)
    ends = ingested_ends(layout)
    _check_source(layout, url)
    dead = {stream for stream in ends if fnmatchcase(stream, settings.dead_letter_pattern)}
    journals = {stream for stream in ends if fnmatchcase(stream, settings.journal_pattern)} - dead
    client = commands_client(url)
    try:
        await check_server(client, url)
        wanted = sorted(journals | dead if dead_letters else journals)
        return [await _trim_stream(client, stream, ends[stream], settings.trim_margin) for stream in wanted]
    except RedisError as error:
        denied = meaning_of(error) is Meaning.DENIED
        advice = f" (trim needs {' '.join(RIGHTS)} in addition to the rights of ingestion)" if denied else ""
        raise UnreachableError(f"Redis at {shown_address(url)!r} failed: {error}{advice}") from error
    finally:
        await client.aclose()


def ingested_ends(layout: Layout) -> dict[str, Id]:
    """Return the last entry of each stream that will never be read again. Raises ConfigurationError."""
    offset = layout.committed_offset()
    if offset is None:
        raise ConfigurationError(
            f"cannot trim: no batch of the lake {layout.root} is committed. Run `reaper pipeline ingest`."
        )
    return {stream: parse_id(position["id"]) for stream, position in json.loads(offset).items()}


def threshold(ingested: Id, now_ms: int, margin: timedelta) -> Id:
    """Return the lowest ID to keep, which is ``margin`` behind now and never above the last ingested one."""
    return min(ingested, (max(0, now_ms - to_ms(margin)), 0))


def _check_source(layout: Layout, url: str) -> None:
    """Raise ConfigurationError if the lake is filled from another Redis, which may have streams of the same names."""
    source = json.loads(layout.source.read_text())["redis"]
    if source and source != shown_address(url):
        raise ConfigurationError(
            f"the lake {layout.root} is filled from {source}, not from {shown_address(url)}. Give the address "
            "that `reaper pipeline ingest` uses."
        )


async def _trim_stream(client: Redis, stream: str, ingested: Id, margin: timedelta) -> Trimmed:
    key, shown = key_of(stream), printable(stream)
    try:
        info = await client.xinfo_stream(key)
    except ResponseError:
        return Trimmed(shown, 0, 0, "it is gone")
    if parse_id(_text(info, "last-generated-id")) < ingested:
        return Trimmed(shown, 0, await client.xlen(key), "it is not the stream that was ingested: it ends before")
    seconds, microseconds = await client.time()
    lowest = show_id(threshold(ingested, seconds * 1000 + microseconds // 1000, margin))
    removed = 0
    while taken := await client.xtrim(key, minid=lowest, approximate=True, limit=TRIM_AT_ONCE):
        removed += taken
    return Trimmed(shown, removed, await client.xlen(key))


def _text(info: Mapping[Any, Any], name: str) -> str:
    """Return a value of a reply, which a client may leave as bytes."""
    value = info.get(name, info.get(name.encode(), b""))
    return value.decode() if isinstance(value, bytes) else str(value)
