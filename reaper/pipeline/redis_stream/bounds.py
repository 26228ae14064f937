"""Where reading begins and ends, as options say it: for all streams alike, or for each by its name. Pure."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from reaper.pipeline.redis_stream.errors import RedisStreamError

EARLIEST, LATEST = "earliest", "latest"
MOST = 2**64 - 1
"""Of either number of an ID."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bounds:
    """``earliest``, ``latest``, an ID, or ``(ID`` for "not that one", of each stream."""

    others: str
    by_stream: Mapping[str, str] = field(default_factory=dict)

    def of(self, stream: str) -> str:
        """Return the bound of one stream."""
        return self.by_stream.get(stream, self.others)

    def require_known(self, name: str, streams: Iterable[str]) -> None:
        """Raise RedisStreamError where a stream has a bound and is not among ``streams``. ``name``: of the option."""
        unknown = sorted(set(self.by_stream) - set(streams))
        if unknown:
            raise RedisStreamError(f"option {name} names {', '.join(unknown)}, which option stream does not name.")


def starting_bounds(entry_id: str, timestamp: str) -> Bounds:
    """Return where to begin, by ``startingId`` or ``startingTimestamp``. Raises RedisStreamError."""
    if entry_id and timestamp:
        raise RedisStreamError("set startingId or startingTimestamp, not both.")
    if timestamp:
        return _bounds("startingTimestamp", timestamp, EARLIEST, _first_of)
    return _bounds("startingId", entry_id or EARLIEST, EARLIEST, _entry)


def ending_bounds(entry_id: str, timestamp: str) -> Bounds:
    """Return where to end, by ``endingId`` (with it) or ``endingTimestamp`` (before it). Raises RedisStreamError."""
    if entry_id and timestamp:
        raise RedisStreamError("set endingId or endingTimestamp, not both.")
    if timestamp:
        return _bounds("endingTimestamp", timestamp, LATEST, lambda name, value: f"({_first_of(name, value)}")
    return _bounds("endingId", entry_id or LATEST, LATEST, _entry)


def _bounds(name: str, text: str, others: str, read: Callable[[str, str], str]) -> Bounds:
    """Read one value, or a JSON object of values by stream."""
    if not text.startswith("{"):
        return Bounds(read(name, text))
    try:
        given: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise RedisStreamError(
            f'option {name} is no JSON object of streams, such as {{"orders": "17-0"}}: {error}.'
        ) from None
    return Bounds(others, {stream: read(f"{name} of {stream}", str(value)) for stream, value in given.items()})


def _entry(name: str, text: str) -> str:
    parts = re.fullmatch(r"\(?(\d{1,20})(?:-(\d{1,20}))?", text, re.ASCII)
    if text not in (EARLIEST, LATEST) and (parts is None or any(int(part or 0) > MOST for part in parts.groups())):
        raise RedisStreamError(f"option {name} is {text!r}: it must be earliest, latest or an entry ID.")
    return text


def _first_of(name: str, text: str) -> str:
    """Return the lowest ID whose time is not before an instant: IDs begin with theirs, in ms."""
    if re.fullmatch(r"\d{1,15}", text):
        return text
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None or instant < _EPOCH:
        raise RedisStreamError(
            f"option {name} is {text!r}: it must be in ms since 1970, or written with its time zone as "
            "2026-11-20T15:04:00Z or 2026-11-20T16:04:00+01:00."
        )
    return str(-((_EPOCH - instant) // timedelta(milliseconds=1)))
