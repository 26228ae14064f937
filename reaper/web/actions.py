"""The changes of the status page. Each needs the token, and is logged."""

import codecs
import hmac
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from reaper.operations.dead_letters import Selection, choose, select
from reaper.operations.drain import DRAIN_S, drain, undo_drain
from reaper.operations.groups import check_exists, keys_of, known_pairs, set_paused
from reaper.operations.redrive import RedriveOutcome, redrive, redrive_as_set
from reaper.replicas import read_watched
from reaper.service import Reaper
from reaper.settings import ReaperSettings
from workers.protocol.errors import ConfigurationError, NotPossibleError
from workers.protocol.keys import GroupKeys
from workers.protocol.log_fields import fields
from workers.protocol.messages import counted

logger = logging.getLogger(__name__)

SHORTEST_TOKEN = 16
MOST_REDRIVEN = 10_000
"""Dead letters that one click redrives; the next click goes on."""


def read_token(file: str) -> bytes | None:
    """Return the token, or None where no file is set. Raises ConfigurationError."""
    if not file:
        return None
    try:
        token = Path(file).read_bytes().removeprefix(codecs.BOM_UTF8).strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read actions_token_file {file}: {error.strerror}.") from error
    if len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            f"actions_token_file {file} has a token of {len(token)} characters. Use {SHORTEST_TOKEN} or more, "
            "for example from `openssl rand -hex 24`."
        )
    return token


def is_token(token: bytes, header: str) -> bool:
    """Tell whether an Authorization header bears the token, in constant time."""
    kind, _, given = header.partition(" ")
    return hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token) and kind.lower() == "bearer"


class Actions:
    """Each takes what the page sent and returns what to show. Raises ConfigurationError, and redis-py's errors."""

    def __init__(self, client: Redis, reaper: Reaper) -> None:
        self._client = client
        self._reaper = reaper

    @property
    def _settings(self) -> ReaperSettings:
        return self._reaper.settings  # a reload changes them

    async def set_paused(self, sent: Mapping[str, Any], *, paused: bool) -> str:
        """Put a group's brake on, or take it off."""
        keys = await self._group(sent)
        await set_paused(self._client, keys, paused)
        return _told(f"{keys.pair}: recovery {'paused' if paused else 'resumed'}")

    async def redrive(self, sent: Mapping[str, Any]) -> str:
        """Redrive one dead letter, or those of a reason that are there now."""
        keys = await self._group(sent)
        what = _selection(sent)
        how = redrive_as_set(self._settings)
        counts: Counter[RedriveOutcome] = Counter()
        async for result in redrive(self._client, keys, self._ids(keys, what), how):
            counts[result.outcome] += 1
        left = sum(counts.values()) - counts[RedriveOutcome.REDRIVEN]
        more = f", {left} left as they are" if left else ""
        return _told(f"{keys.pair}: {counted(counts[RedriveOutcome.REDRIVEN], 'dead letter')} redriven{more}")

    async def _ids(self, keys: GroupKeys, what: Selection) -> AsyncIterator[str]:
        number = 0
        async for letter in select(self._client, keys, what):
            if number == MOST_REDRIVEN:
                return
            number += 1
            yield letter.entry_id

    async def drain(self, sent: Mapping[str, Any]) -> str:
        """Have a replica hand its groups over, and take none for some minutes."""
        replica = await drain(self._client, self._settings.namespace_keys, _replica(sent), round(DRAIN_S * 1000))
        return _told(f"{replica.id} hands its groups over, and takes none for {DRAIN_S / 60:g} minutes")

    async def undo_drain(self, sent: Mapping[str, Any]) -> str:
        """Let a replica take groups again."""
        replica_id = _replica(sent)
        await undo_drain(self._client, self._settings.namespace_keys, replica_id)
        return _told(f"{replica_id} may take groups again")

    async def _group(self, sent: Mapping[str, Any]) -> GroupKeys:
        """Return the group that the page sent. Raises ConfigurationError if no replica knows it."""
        keys = await known_group(self._client, self._settings, sent.get("group"))
        await check_exists(self._client, keys)
        return keys


async def known_group(client: Redis, settings: ReaperSettings, group: object) -> GroupKeys:
    """Return the keys of a group that the replicas know. Raises NotPossibleError."""
    pairs = known_pairs(settings.groups, (await read_watched(client, settings.namespace_keys)).values())
    if group not in pairs:
        raise NotPossibleError(f"group {group!r} is unknown: no replica watches it. Check its name.")
    return keys_of([str(group)])[0]


def _selection(sent: Mapping[str, Any]) -> Selection:
    given = {name: sent.get(name) for name in ("id", "reason")}
    if not all(value is None or isinstance(value, str) for value in given.values()):
        raise ConfigurationError("invalid request: id and reason must be text.")
    ids = [given["id"]] if given["id"] is not None else []
    return choose(ids, reason=given["reason"])


def _replica(sent: Mapping[str, Any]) -> str:
    replica_id = sent.get("replica")
    if not isinstance(replica_id, str):
        raise ConfigurationError("invalid request: replica must be text.")
    return replica_id


def _told(message: str) -> str:
    logger.warning("action of the status page: %s", fields(result=message))
    return message
