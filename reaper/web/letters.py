"""Single dead letters for the status page: those of a reason, and one with its payload."""

from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from reaper.operations.dead_letters import DeadLetter, check_ids, find, read_dead_letter
from reaper.operations.streams import newest_first
from workers.protocol.keys import GroupKeys

SHOWN = 50
LOOKED_AT = 2_000
"""Dead letters, newest first, in which those of a reason are looked for; `reaper dead-letters list` knows all."""
LETTER_PAGE = 100
LONGEST_VALUE = 4_096
"""Bytes of a field that are shown."""
MOST_FIELDS = 200


async def letters_of(client: Redis, keys: GroupKeys, reason: str) -> list[dict[str, Any]]:
    """Return the newest dead letters of a reason, without what their jobs hold."""
    found: list[dict[str, Any]] = []
    async for row in newest_first(client, keys.dead, LOOKED_AT, LETTER_PAGE):
        letter = read_dead_letter(*row)
        if letter.reason == reason:
            found.append(_facts(letter))
        if len(found) == SHOWN:
            break
    return found


async def one_letter(client: Redis, keys: GroupKeys, entry_id: str) -> dict[str, Any] | None:
    """Return one dead letter with its payload, or None where it is not there. Raises ConfigurationError."""
    check_ids([entry_id])
    letter = await find(client, keys, entry_id)
    if letter is None:
        return None
    shown = [{"name": _readable(name), "value": _readable(value)} for name, value in letter.payload[:MOST_FIELDS]]
    return {
        **_facts(letter),
        "traceback": letter.traceback,
        "consumers": list(letter.consumers),
        "fields": shown,
        "more_fields": max(0, len(letter.payload) - MOST_FIELDS),
    }


def _facts(letter: DeadLetter) -> dict[str, Any]:
    facts = replace(letter, payload=[]).as_json()
    named = ("id", "job", "reason", "error", "deliveries", "generation", "at_ms")
    return {name: facts[name] for name in named}


def _readable(value: bytes) -> dict[str, Any]:
    """Return bytes as text where they are text, else as hex, and how many there are."""
    shown = value[:LONGEST_VALUE]
    text = shown.decode("utf-8", "replace" if len(shown) < len(value) else "strict") if _is_text(value) else None
    kind = {"hex": shown.hex(" ")} if text is None else {"text": text}
    return {**kind, "bytes": len(value), "cut": len(shown) < len(value)}


def _is_text(value: bytes) -> bool:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\n\t\r" for character in text[:LONGEST_VALUE])
