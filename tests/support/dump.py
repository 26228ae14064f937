"""Shows the whole content of a Redis database in a form that tests can write down and compare.

Values are text. In Latin-1 every byte is one character. Values that depend on the moment are replaced. Entry IDs that
the server made become ``new-1``, ``new-2`` … in order, and its current time becomes ``now``. Idle times are left out.
"""

import re
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from workers.protocol.events import decode_entry

BASE_MS = 1_700_000_000_000
"""Tests give their entries IDs from here on: old enough to be told from new ones, young enough to be automatic."""

_MOMENT = re.compile(r"\b(\d{13})(-\d+)?\b")
_NEW_FROM_MS = BASE_MS + 10_000_000_000

Shown = dict[str, Any]

_FIRST_QUARANTINED = 2**52
_IN_PLACE = re.compile(rb"(stream|retry) \d+-\d+")
"""A member that names an entry which waits where it is."""

_UNPACK = "local job = cmsgpack.unpack(ARGV[1]); return {job.kind, job.job_id, job.deliveries, job.generation, \
job.first_ms, job.consumers, job.entry_id, job.user}"


async def dump(client: Redis) -> Shown:
    """Return every key.

    Strings are text, hashes are dicts, streams are as in `show_stream`, and schedules are unpacked.
    """
    moments: dict[str, str] = {}
    keys = sorted(_text(key) for key in await client.keys("*"))
    return {key: _replace_moments(await _show(client, key), moments) for key in keys}


async def _show(client: Redis, key: str) -> Any:
    kind = _text(await client.type(key))
    match kind:
        case "string":
            return _text(await client.get(key))  # type: ignore[arg-type]
        case "hash":
            return {_text(name): _text(value) for name, value in sorted((await client.hgetall(key)).items())}
        case "stream" if key.endswith(":journal"):
            return await show_journal(client, key)
        case "stream":
            return await show_stream(client, key)
        case "zset" if key.endswith((":enqueued", ":live", ":drained")):
            members: Any = await client.zrange(key, 0, -1, withscores=True)
            return {_text(member): int(score) for member, score in members}
        case "zset":
            rows: Any = await client.zrange(key, 0, -1, withscores=True)
            return [await _show_member(client, row[0], row[1]) for row in rows]
        case _:
            return kind


async def show_stream(client: Redis, key: str) -> Shown:
    """Return a stream's entries ``(ID, fields…)`` and, by group, its pending entries ``(ID, consumer, count)``."""
    entries: Any = await client.xrange(key)
    shown: Shown = {"entries": [(_text(entry_id), *_flat_text(flat)) for entry_id, flat in entries]}
    groups: Any = await client.xinfo_groups(key)
    for group in sorted(_text(info["name"]) for info in groups):
        rows: Any = await client.xpending_range(key, group, "-", "+", 100_000)
        shown[group] = [(_text(entry_id), _text(consumer), count) for entry_id, consumer, _, count in rows]
    return shown


async def show_journal(client: Redis, key: str) -> list[tuple[str, str, Shown]]:
    """Return a journal's events as ``(event, job, data)``, ``data`` without idle time."""
    entries: Any = await client.xrange(key)
    return [event for _, flat in entries for event in _show_events(flat)]


def _show_events(flat: Sequence[bytes]) -> list[tuple[str, str, Shown]]:
    told = decode_entry(b"0-1", flat)
    return [(one.event, one.job, {name: said for name, said in one.data.items() if name != "idle_ms"}) for one in told]


async def _show_member(client: Redis, member: bytes, score: float) -> tuple[Any, ...]:
    if _IN_PLACE.fullmatch(member):
        return (_show_score(score), _text(member))
    unpacked: Any = await client.eval(_UNPACK, 0, member)
    *parts, user = unpacked
    return (_show_score(score), *(_show_part(part) for part in parts), _flat_text(user))


def _show_part(part: bytes | int) -> str | int:
    """Numbers may be packed as numbers or as digits. That makes no difference to readers."""
    return int(part) if isinstance(part, int) or part.isdigit() else _text(part)


def _show_score(score: float) -> int | str:
    """Quarantined jobs have scores behind all due times, either in the order of parking, or in front of all others."""
    if score < _FIRST_QUARANTINED:
        return int(score)
    return "front" if score == _FIRST_QUARANTINED else "quarantined"


def _replace_moments(value: Any, moments: dict[str, str]) -> Any:
    match value:
        case str():
            return _MOMENT.sub(lambda match: _name_moment(match, moments), value)
        case dict():
            return {name: _replace_moments(part, moments) for name, part in value.items()}
        case list() | tuple():
            return type(value)(_replace_moments(part, moments) for part in value)
        case int() if value > _NEW_FROM_MS:
            return "now"
        case _:
            return value


def _name_moment(match: "re.Match[str]", moments: dict[str, str]) -> str:
    if int(match[1]) < _NEW_FROM_MS:
        return match[0]
    if match[2] is None:
        return "now"
    return moments.setdefault(match[0], f"new-{len(moments) + 1}")


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _flat_text(flat: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(_text(part) for part in flat)
