"""Loads and runs the Lua scripts. One file is one transition. Its header is its contract.

A script is put together from its own file and the shared parts it names (``--- @prelude``). It gets only the functions
that it uses, because each call creates the functions of its script again.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import anyio
import redis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from workers.protocol.connection import KeptConnection
from workers.protocol.meaning import is_contact_error, was_not_run

RETRY_DELAYS_S = (0.05, 0.2)
Keys = Sequence[str | bytes]
Words = Sequence[str | bytes | int | float]
_SHARED_PART = re.compile(r"^--- @(\w+)$", re.MULTILINE)
_STATEMENT = re.compile(r"(?:^--.*\n)*^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)
"""Where a statement of a shared part begins, with the comment in front of it: all of them declare something."""
COMMENT = re.compile(r"(?<!-)--(?!- @).*$", re.MULTILINE)


class Script:
    """One Lua script, run by its digest. A server that does not know it gets its text."""

    def __init__(self, package: str, name: str) -> None:
        self.name = name
        self.source = put_together(script_text(package, name))
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Redis | KeptConnection, keys: Keys, args: Words) -> Any:
        """Run once. Raises redis-py's errors. After a lost contact the effect is unknown."""
        try:
            return await client.execute_command("EVALSHA", self.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await client.execute_command("EVAL", self.source, len(keys), *keys, *args)

    def run_blocking(self, client: "redis.Redis", keys: Keys, args: Words) -> Any:
        """Run once, in a thread that may block. Raises redis-py's errors."""
        try:
            return client.execute_command("EVALSHA", self.digest, len(keys), *keys, *args)
        except NoScriptError:
            return client.execute_command("EVAL", self.source, len(keys), *keys, *args)

    async def run_idempotent(self, client: Redis | KeptConnection, keys: Keys, args: Words) -> Any:
        """Run, and repeat after a lost contact. Only for scripts that check the state before every write."""
        reply, _ = await self.run_until_answered(client, keys, args)
        return reply

    async def run_until_answered(self, client: Redis | KeptConnection, keys: Keys, args: Words) -> tuple[Any, bool]:
        """As `run_idempotent`, and also return whether a reply was lost on the way."""
        reply_was_lost = False
        for delay in RETRY_DELAYS_S:
            try:
                return await self.run(client, keys, args), reply_was_lost
            except Exception as error:
                if not is_contact_error(error):
                    raise
                reply_was_lost = reply_was_lost or not was_not_run(error)
            await anyio.sleep(delay)
        return await self.run(client, keys, args), reply_was_lost


def put_together(text: str) -> str:
    """Replace each mark by the used functions of its shared part, used by the script or by a later part."""
    for mark in reversed(list(_SHARED_PART.finditer(text))):
        behind = text[mark.end() :]
        text = text[: mark.start()] + _used_of(mark[1], behind) + behind
    return text


def _used_of(part: str, behind: str) -> str:
    """Return those statements of a shared part whose names occur behind it, or in a later one that is needed."""
    kept, words = "", _words(behind)
    for names, statement in reversed(_statements(part)):
        if not words.isdisjoint(names):
            kept, words = statement + kept, words | _words(statement)
    return kept


@cache
def _statements(part: str) -> list[tuple[list[str], str]]:
    """Return the statements of a shared part, each with the names that it declares."""
    text = script_text("workers.protocol", part)
    found = list(_STATEMENT.finditer(text))
    ends = [*(statement.start() for statement in found[1:]), len(text)]
    return [(one[1].split(", "), text[one.start() : end]) for one, end in zip(found, ends, strict=True)]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", COMMENT.sub("", text)))


@cache
def script_text(package: str, name: str) -> str:
    """Return the text of a script's own file, or of the files in the folder of its name, in their order."""
    folder = files(package) / "lua"
    own, split = folder / f"{name}.lua", folder / name
    parts = sorted(split.iterdir(), key=lambda file: file.name) if split.is_dir() else [own]
    return "".join(part.read_text(encoding="utf-8") for part in parts)


@cache
def load_script(package: str, name: str) -> Script:
    """Return script ``name`` of ``package`` (``workers.protocol`` or ``reaper``), read once."""
    return Script(package, name)
