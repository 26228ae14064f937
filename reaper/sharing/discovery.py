"""Finds the streams that fit the patterns of the settings, and knows the groups that were found.

The replicas take turns, so that one of them scans at a time. It writes what it found to a hash (`reaper.watched`),
which all of them read. So only a replica that scans needs the right to `SCAN`.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.replicas import SCANNED
from reaper.settings import GroupSettings, ReaperSettings, redis_pattern
from reaper.watched import change_watched, read_found
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import NamespaceKeys, group_keys, split_pair
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, in_words, is_nothing_there, is_outage, meaning_of
from workers.protocol.messages import text
from workers.protocol.routing import RoutedClient
from workers.runtime.clock import monotonic
from workers.runtime.redis_failures import RedisFailures
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

COUNT = 1_000
"""Keys that the server looks at in one call. The pause behind a call is as long as the call took."""
NAMED = 3
"""So many groups that come or go at once are logged by name."""
RETRY_S = 1.0
READ = "read which groups to watch"


class Discovery:
    """The groups that are watched besides those that the settings name. `run` must be running."""

    def __init__(
        self,
        client: Redis,
        keys: NamespaceKeys,
        settings: ReaperSettings,
        digest: str,
        changed: Callable[[], None],
        scanned: Callable[[], None],
    ) -> None:
        """``digest`` of the settings: replicas with other settings find other groups.

        ``changed`` is called when other groups are to be watched, and ``scanned`` when `scan` has changed.
        """
        self._client = client
        self._keys = keys
        self._settings = settings
        self._digest = digest
        self._changed = changed
        self._scanned = scanned
        self._version: str | None = None
        self._is_news = anyio.Event()
        self._turn = anyio.Event()
        self._may_scan = True
        self.is_scanning = False
        self.scan = ""
        """How the last scan of this replica went: SCANNED, or why it failed. '' = there was none."""
        self.found: Mapping[str, str] | None = None
        """The pattern that found each group, '' for one that a person has added. None = not read yet."""
        self.troubles = RedisFailures()

    # ---- news from the registration

    @property
    def interval_ms(self) -> int | None:
        """Time between two scans. None = this replica does not scan."""
        return to_ms(self._settings.discovery) if self._settings.patterns and self._may_scan else None

    def hear(self, version: str, *, is_our_turn: bool) -> None:
        """Read the groups if they have changed, and scan if it is our turn."""
        if version != self._version:
            self._version = version
            self._is_news.set()
        if is_our_turn:
            self._turn.set()

    async def run(self) -> None:
        """Read and scan until cancelled. Errors of Redis do not end it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_news)
            tasks.start_soon(self._scan_in_turn)

    async def _read_news(self) -> None:
        while True:
            await self._is_news.wait()
            self._is_news = anyio.Event()
            try:
                found = await read_found(self._client, self._keys) if self._version else {}
            except (RedisError, OSError) as error:
                if self.troubles.failed(READ, error, monotonic()):
                    logger.warning("cannot read which groups to watch: %s", fields(cause=in_words(error)))
                self._is_news.set()
                await anyio.sleep(RETRY_S)
                continue
            self.troubles.works(READ, monotonic())
            before, self.found = self.found, found
            _log("added", [pair for pair in found if pair not in (before or {})])
            _log("removed", [pair for pair in before or {} if pair not in found])
            self._changed()

    async def _scan_in_turn(self) -> None:
        while True:
            self._turn = anyio.Event()
            await self._turn.wait()
            self.is_scanning = True
            before = self.scan
            try:
                failure = await self._scan(self._settings)
            except (RedisError, OSError) as error:
                failure, self.scan = error, before if is_outage(error) else str(error)
                self._may_scan = meaning_of(error) is not Meaning.DENIED
            else:
                self.scan = SCANNED
            finally:
                self.is_scanning = False
            if self.scan != before:
                self._scanned()
                if failure:
                    logger.warning("cannot scan for streams: %s", fields(cause=in_words(failure)))
            if not self._may_scan:
                await self._leave_it_to_others()

    async def _leave_it_to_others(self) -> None:
        try:
            await self._client.zrem(self._keys.scanned, self._digest)
        except (RedisError, OSError):
            logger.debug("cannot hand the scan over", exc_info=True)  # they scan one interval later
        await anyio.sleep(self._settings.discovery.total_seconds())
        self._may_scan = True  # an administrator may have granted the right

    # ---- scanning

    async def _scan(self, settings: ReaperSettings) -> Exception | None:
        """Find all groups, and write those that have come or gone. Return why streams were not seen, if some were not.

        Raises errors of redis-py if it cannot scan at all.
        """
        known, scan = await read_found(self._client, self._keys), Scan(settings)
        await scan.run(self._client)
        added = {pair: pattern for pair, pattern in scan.found.items() if pair not in known}
        await change_watched(self._client, self._keys, add=added)
        missing = [pair for pair, pattern in known.items() if pattern and pair not in scan.found]
        if missing:
            unwanted = [pair for pair in missing if not finds(settings, pair)] if await self._is_alone() else []
            await change_watched(self._client, self._keys, remove={*unwanted, *await self._gone(missing)})
        return scan.error

    async def _is_alone(self) -> bool:
        """Tell whether all replicas have our settings. Others may watch groups that our patterns do not find."""
        members: Any = await self._client.zrange(self._keys.live, 0, -1)
        return {text(member).partition("/")[0] for member in members} <= {self._digest}

    async def _gone(self, pairs: Sequence[str]) -> list[str]:
        """Ask again, because a scan misses streams of an unreachable node, and streams that move to another node."""
        by_node: dict[object, list[str]] = {}
        for pair in pairs:
            node = self._client.node_of(_names(pair)[0]) if isinstance(self._client, RoutedClient) else None
            by_node.setdefault(node, []).append(pair)
        gone = []
        for page in [some[first : first + COUNT] for some in by_node.values() for first in range(0, len(some), COUNT)]:
            replies = await _groups_of(self._client, [_names(pair)[0] for pair in page])
            for pair, groups in zip(page, replies, strict=True):
                is_there = _names(pair)[1] in groups if isinstance(groups, set) else not is_nothing_there(groups)
                gone += [] if is_there else [pair]
        return gone


@dataclass(slots=True)
class Scan:
    """One scan of all nodes."""

    settings: ReaperSettings
    found: dict[str, str] = field(default_factory=dict)
    """The groups, with the patterns that found them."""
    error: Exception | None = None
    """Why a part of the streams was not seen."""

    async def run(self, client: Redis) -> None:
        """Scan. Raises errors of redis-py if not even the names of streams can be read."""
        for node in await client.masters() if isinstance(client, RoutedClient) else [client]:
            try:
                async for names in _streams(node, self.settings.patterns):
                    await self._look_at(node, fitting(names, self.settings))
            except (RedisError, OSError) as error:
                if meaning_of(error) is Meaning.DENIED:
                    raise
                self.error = error  # the other nodes may answer

    async def _look_at(self, node: Redis, streams: Mapping[str, Sequence[GroupSettings]]) -> None:
        """Note which of these streams have the groups that are looked for."""
        replies = await _groups_of(node, streams) if streams else []
        for (stream, patterns), groups in zip(streams.items(), replies, strict=True):
            if isinstance(groups, Exception):  # it was deleted, it moves to another node, or we lack the right
                self.error = groups if meaning_of(groups) is Meaning.DENIED else self.error
                continue
            for pattern in patterns:
                if pattern.group in groups:
                    self.found.setdefault(f"{stream}/{pattern.group}", pattern.keys.pair)


def fitting(names: Collection[str], settings: ReaperSettings) -> dict[str, list[GroupSettings]]:
    """Return the patterns that find each stream, without streams whose names cannot be used."""
    found = {}
    for name in names:
        patterns = [pattern for pattern in settings.patterns if pattern.finds(name) and _is_usable(name, pattern)]
        if patterns:
            found[name] = patterns
    return found


def finds(settings: ReaperSettings, pair: str) -> bool:
    """Tell whether a pattern of the settings finds the group."""
    stream, group = _names(pair)
    return any(pattern.group == group for pattern in fitting([stream], settings).get(stream, ()))


def _names(pair: str) -> tuple[str, str]:
    return split_pair(pair) or ("", "")


def _is_usable(name: str, pattern: GroupSettings) -> bool:
    if name.endswith(f":retry:{pattern.group}") and "{" in name:
        return False  # the retry stream of another stream, and its group has the same name
    try:
        group_keys(name, pattern.group)
    except ConfigurationError:
        return False
    return True


async def _groups_of(client: Redis, streams: Collection[str]) -> list[set[str] | Exception]:
    """Return the names of the groups of each stream, or why they cannot be read."""
    pipeline = client.pipeline(transaction=False)
    for stream in streams:
        pipeline.xinfo_groups(stream)
    replies = await pipeline.execute(raise_on_error=False)
    return [one if isinstance(one, Exception) else {text(group["name"]) for group in one} for one in replies]


async def _streams(node: Redis, patterns: Sequence[GroupSettings]) -> AsyncIterator[list[str]]:
    """Yield the names of the streams at a node, page by page. At most half of the time, the server works for us."""
    one = {pattern.stream for pattern in patterns}
    match = redis_pattern(one.pop()) if len(one) == 1 else None
    cursor = None
    while cursor != 0:
        began = monotonic()
        cursor, keys = await node.scan(cursor or 0, match=match, count=COUNT, _type="STREAM")
        pause_s = monotonic() - began
        yield [name for key in keys if (name := _readable(key))]
        await anyio.sleep(pause_s)


def _readable(key: bytes | str) -> str:
    try:
        return key if isinstance(key, str) else key.decode()
    except UnicodeDecodeError:
        return ""


def _log(change: str, pairs: Sequence[str]) -> None:
    if pairs:
        names = ",".join(sorted(pairs)) if len(pairs) <= NAMED else f"{min(pairs)},…"
        logger.info("watched groups changed: %s", fields(change=change, number=len(pairs), groups=names))
