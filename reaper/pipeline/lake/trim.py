"""Trims journals in Redis behind what is safely in the lake: the end of the newest batch that Spark has committed.

Not by the source's own ``commit``: that comes a batch late, or never. Nor by what lies in the lake: a batch that was
published and not committed is read again.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from reaper.pipeline.lake.history import check_history
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.settings import PipelineSettings
from workers.protocol.address import shown_address
from workers.protocol.connection import check_server, commands_client
from workers.protocol.errors import ConfigurationError, UnreachableError
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.routing import masters_of
from workers.runtime.settings import to_ms

TRIM_AT_ONCE = 10_000
"""Entries that one call looks at: Redis serves nobody else meanwhile."""

RIGHTS = ("+time", "+xlen", "+xtrim")
"""What a user needs for it beside the rights of ingestion, which writes nothing."""

EntryId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What was done to one stream."""

    stream: str
    removed: int
    left: int
    kept_because: str = ""
    """Why it was not touched, where it was not."""


async def trim(settings: PipelineSettings, layout: Layout, *, url: str, dead_letters: bool = False) -> list[Trimmed]:
    """Trim the journals that were ingested (and, where asked to, the dead-letter streams).

    Raises ConfigurationError where nothing was ingested, or from another Redis, or where the lake lacks what its
    checkpoint says, and UnreachableError.
    """
    check_history(layout)
    ingested = ingested_ends(layout)
    _check_source(layout, url)
    client = commands_client(url)
    try:
        await check_server(client, url)
        names = await _streams_to_trim(client, settings, dead_letters=dead_letters)
        return [
            await _trim_stream(client, name, ingested[name], settings.margin) for name in sorted(names & set(ingested))
        ]
    except RedisError as error:
        denied = meaning_of(error) is Meaning.DENIED
        advice = f" (trim needs {' '.join(RIGHTS)} beside what ingestion needs)" if denied else ""
        raise UnreachableError(f"Redis at {shown_address(url)!r} failed: {error}{advice}") from error
    finally:
        await client.aclose()


def ingested_ends(layout: Layout) -> dict[str, EntryId]:
    """Return the last entry of each stream that will never be read again. Raises ConfigurationError."""
    offset = layout.committed_offset()
    if offset is None:
        raise ConfigurationError(f"nothing is safely in the lake {layout.root} yet: no batch of it was committed.")
    return {stream: read_id(position["id"]) for stream, position in json.loads(offset).items()}


def read_id(text: str) -> EntryId:
    """Read ``ms-seq``."""
    ms, _, seq = text.partition("-")
    return int(ms), int(seq or 0)


def threshold(ingested: EntryId, now_ms: int, margin: timedelta) -> EntryId:
    """Return the lowest ID to keep: never above the last one ingested, and ``margin`` behind now."""
    return min(ingested, (max(0, now_ms - to_ms(margin)), 0))


def _check_source(layout: Layout, url: str) -> None:
    """Streams have the same names in many places: trim only where the lake was filled from."""
    source = json.loads(layout.source.read_text())["redis"]
    if source and source != shown_address(url):
        raise ConfigurationError(
            f"the lake {layout.root} is filled from {source}, not from {shown_address(url)}: give the address that "
            "`reaper pipeline ingest` uses."
        )


async def _streams_to_trim(client: Redis, settings: PipelineSettings, *, dead_letters: bool) -> set[str]:
    """Return the names of what may be trimmed. What matches both patterns counts as dead letters."""
    dead = await _find(client, settings.dead_letters)
    journals = await _find(client, settings.journals) - dead
    return journals | dead if dead_letters else journals


async def _find(client: Redis, pattern: str) -> set[str]:
    if not pattern:
        return set()
    return {
        key.decode("utf-8", "surrogateescape")
        for server in await masters_of(client)
        async for key in server.scan_iter(match=pattern, count=1000, _type="stream")
    }


async def _trim_stream(client: Redis, stream: str, ingested: EntryId, margin: timedelta) -> Trimmed:
    key = stream.encode("utf-8", "surrogateescape")
    shown = stream.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    try:
        if read_id(await _last_id(client, key)) < ingested:
            why = "it is not the stream that was ingested: it ends before"
            return Trimmed(shown, 0, await client.xlen(key), why)
    except ResponseError:
        return Trimmed(shown, 0, 0, "it is gone")
    seconds, microseconds = await client.time()
    ms, seq = threshold(ingested, seconds * 1000 + microseconds // 1000, margin)
    removed = 0
    while taken := await client.xtrim(key, minid=f"{ms}-{seq}", approximate=True, limit=TRIM_AT_ONCE):
        removed += taken
    return Trimmed(shown, removed, await client.xlen(key))


async def _last_id(client: Redis, key: bytes) -> str:
    info: dict[Any, Any] = await client.xinfo_stream(key)
    last = info.get("last-generated-id", info.get(b"last-generated-id"))
    return last.decode() if isinstance(last, bytes) else str(last)
