"""Finds the streams that fit the patterns of the settings, and reads the groups that were found.

The replicas take turns. One scans, and writes the groups to a hash (`reaper.watched`), which all of them read. So only
one replica needs the right to `SCAN`. A replica without it passes its turn on.
"""

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.context import ReplicaContext
from reaper.replicas import SCANNED
from reaper.settings import GroupSettings, ReaperSettings, redis_pattern
from reaper.sharing.tenures import Tenures
from reaper.watched import change_watched, read_found
from workers.protocol.errors import ConfigurationError
from workers.protocol.keys import group_keys, split_group
from workers.protocol.log_fields import fields
from workers.protocol.meaning import Meaning, in_words, is_missing_key, is_outage, meaning_of
from workers.protocol.messages import text
from workers.protocol.routing import RoutedClient
from workers.runtime.clock import monotonic
from workers.runtime.redis_failures import RedisFailures
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)

COUNT = 1_000
"""Keys that the server looks at in one call. The pause after a call is as long as the call."""
NAMED = 3
"""Up to this number, groups that come or go together are logged by name."""
RETRY_S = 1.0
READ = "read which groups to watch"


class Discovery:
    """The watched groups outside the settings. `run` must be running."""

    def __init__(self, context: ReplicaContext, tenures: Tenures, digest: str) -> None:
        """Replicas with the same ``digest`` of their settings take turns."""
        self._context = context
        self._client = context.client
        self._settings = context.settings
        self._keys = context.settings.namespace_keys
        self._tenures = tenures
        self._version: str | None = None
        self._is_news = anyio.Event()
        self._turn = anyio.Event()
        self._digest = digest
        self._may_scan_at_s = float("-inf")
        self.scan = ""
        """`SCANNED`, or the error of the last scan of this replica. Empty before the first scan."""
        self.found: Mapping[str, str] | None = None
        """The pattern that found each group, or '' for an added group. None = not read yet."""
        self.troubles = RedisFailures()

    # ---- news from the registration

    @property
    def interval_ms(self) -> int | None:
        """Time between two scans. None = this replica does not scan."""
        scans = self._settings.patterns and monotonic() >= self._may_scan_at_s
        return to_ms(self._settings.discovery) if scans else None

    def hear(self, version: str, *, is_our_turn: bool) -> None:
        """Read the groups if their ``version`` has changed, and scan if it is this replica's turn."""
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
            _log("added", [name for name in found if name not in (before or {})])
            _log("removed", [name for name in before or {} if name not in found])
            self._tenures.watch(self._settings.watched_with(found))

    async def _scan_in_turn(self) -> None:
        while True:
            self._turn = anyio.Event()
            await self._turn.wait()
            before = self.scan
            try:
                failure = await self._scan()
                self.scan = SCANNED
            except (RedisError, OSError) as error:
                failure, self.scan = error, before if is_outage(error) else str(error)
                if meaning_of(error) is Meaning.DENIED:
                    await self._pass_turn_on()
            if self.scan != before:
                self._context.changed()
                if failure:
                    logger.warning("cannot scan for streams: %s", fields(cause=in_words(failure)))

    async def _pass_turn_on(self) -> None:
        """Let another replica scan at once. Try again after an interval, because the right may be granted."""
        self._may_scan_at_s = monotonic() + self._settings.discovery.total_seconds()
        with suppress(RedisError, OSError):  # then another replica scans an interval later
            await self._client.zrem(self._keys.scanned, self._digest)

    # ---- scanning

    async def _scan(self) -> Exception | None:
        """Find all groups, and write those that have come or gone. Return the error that hid some streams, or None.

        A group that a former pattern found stays known until it is gone. Raises redis-py's errors if it cannot scan.
        """
        known, found = await read_found(self._client, self._keys), dict[str, str]()
        failure = await self._find(found)
        missing = [name for name, pattern in known.items() if pattern and name not in found]
        gone = [name for name in missing if await self._is_gone(name)]
        added = {name: pattern for name, pattern in found.items() if name not in known}
        await change_watched(self._client, self._keys, add=added, remove=gone)
        return failure

    async def _find(self, found: dict[str, str]) -> Exception | None:
        """Add the groups of all nodes to ``found``, with the patterns that find them. Return as `_scan`."""
        client, failure = self._client, None
        for node in await client.masters() if isinstance(client, RoutedClient) else [client]:
            try:
                async for names in _streams(node, self._settings.patterns):
                    failure = await _add_groups(node, fitting(names, self._settings), found) or failure
            except (RedisError, OSError) as error:
                if meaning_of(error) is Meaning.DENIED:
                    raise
                failure = error  # the other nodes may answer
        return failure

    async def _is_gone(self, name: str) -> bool:
        """Read the group itself, because a scan misses streams of an unreachable node, and streams that move."""
        stream, group = split_group(name) or ("", "")
        try:
            groups = await self._client.xinfo_groups(stream)
        except (RedisError, OSError) as error:
            return is_missing_key(error)
        return all(text(one["name"]) != group for one in groups)


async def _add_groups(
    node: Redis, streams: Mapping[str, Sequence[GroupSettings]], found: dict[str, str]
) -> Exception | None:
    """Add the groups of these streams that fit the patterns. Return the error of a missing right, or None."""
    pipeline, denied = node.pipeline(transaction=False), None
    for stream in streams:
        pipeline.xinfo_groups(stream)
    replies = await pipeline.execute(raise_on_error=False) if streams else []
    for (stream, patterns), groups in zip(streams.items(), replies, strict=True):
        if isinstance(groups, Exception):  # the stream was deleted, it moves to another node, or a right is missing
            denied = groups if meaning_of(groups) is Meaning.DENIED else denied
            continue
        names = {text(group["name"]) for group in groups}
        for pattern in patterns:
            if pattern.group in names:
                found.setdefault(f"{stream}/{pattern.group}", pattern.keys.name)
    return denied


def fitting(names: Collection[str], settings: ReaperSettings) -> dict[str, list[GroupSettings]]:
    """Return the patterns that find each stream, without streams whose names cannot be used."""
    found = {}
    for name in names:
        patterns = [pattern for pattern in settings.patterns if pattern.finds(name) and _is_usable(name, pattern)]
        if patterns:
            found[name] = patterns
    return found


def _is_usable(name: str, pattern: GroupSettings) -> bool:
    if name.endswith(f":retry:{pattern.group}") and "{" in name:
        return False  # the retry stream of another stream, and its group has the same name
    try:
        group_keys(name, pattern.group)
    except ConfigurationError:
        return False
    return True


async def _streams(node: Redis, patterns: Sequence[GroupSettings]) -> AsyncIterator[list[str]]:
    """Yield the names of the streams at a node, page by page. Pauses take half of the time."""
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


def _log(change: str, groups: Sequence[str]) -> None:
    if groups:
        names = ",".join(sorted(groups)) if len(groups) <= NAMED else f"{min(groups)},…"
        logger.info("watched groups changed: %s", fields(change=change, number=len(groups), groups=names))
