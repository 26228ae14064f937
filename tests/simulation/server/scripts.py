"""Runs the shipped Lua scripts, by the Lua that Redis has (5.1). One Lua state serves all servers of a kind of version.

Every crossing between Lua and Python costs time, so there are few. A script's words go in as two tables, Lua writes its
result for the wire, and each ``redis.call`` is one call of Python.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from lupa.lua51 import LuaRuntime

from tests.simulation.server import cmsgpack
from tests.simulation.server.replies import Raw, Reply, ReplyError, Status

_SANDBOX = Path(__file__).with_name("sandbox.lua")
_MOST_ON_THE_STACK = 4000
Call = Callable[[list[bytes]], Reply]
"""Runs one command of a script; raises ReplyError, or `CallRejectedError`."""
May = Callable[[list[bytes]], bool | None]
"""Tells whether the script's user may run a command; None where there is no such command."""


class CallRejectedError(ReplyError):
    """The server rejects a command of a script before it runs. 6.2 adds the place, and keeps the code's minus."""

    def __init__(self, text: str, text_6: str) -> None:
        super().__init__(text)
        self.text_6 = text_6.encode()


class LuaEngine:
    """A Lua state, and the scripts that it has compiled."""

    def __init__(self, *, is_7: bool) -> None:
        self._is_7 = is_7
        lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table_from = lua.table_from
        self._new_table = lua.eval("function() return {} end")
        self._call: Call = _not_running
        self._may: May = _nobody_runs
        self._chunks: dict[bytes, Any] = {}
        bridge = lua.table_from(
            {
                b"call": self._called,
                b"may": self._asked,
                b"log": lambda *_: None,
                b"sha1hex": lambda text: hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(),
                b"pack": lambda value: cmsgpack.pack(value, _items_of),
                b"unpack": self._unpack,
            }
        )
        sandbox = lua.execute(_SANDBOX.read_bytes(), bridge, is_7)
        self._build, self._compile, self._run = sandbox[b"build"], sandbox[b"compile"], sandbox[b"run"]
        self._status, self._failure = sandbox[b"status"], sandbox[b"failure"]

    def compile(self, digest: bytes, source: bytes) -> None:
        """Have a script ready. Raises ReplyError where it is no Lua."""
        if digest in self._chunks:
            return
        chunk = self._compile(source)
        if isinstance(chunk, tuple):
            raise ReplyError(b"ERR Error compiling script (new function): " + chunk[1])
        self._chunks[digest] = chunk

    def run(self, digest: bytes, keys: list[bytes], arguments: list[bytes], call: Call, may: May) -> Raw:
        """Run a script that is ready."""
        self._call, self._may = call, may
        try:
            return Raw(self._run(self._chunks[digest], digest, self._table(keys), self._table(arguments)))
        finally:
            self._call, self._may = _not_running, _nobody_runs

    def _table(self, values: list[Any]) -> Any:
        return self._build(*values) if len(values) < _MOST_ON_THE_STACK else self._table_from(values)

    def _called(self, *words: Any) -> Any:
        try:
            reply = self._call([word if type(word) is bytes else _text(word) for word in words])
        except CallRejectedError as error:
            return self._failure(error.text, error.text_6)
        except ReplyError as error:
            return self._failure(error.text, None)
        return self._to_lua(reply)

    def _asked(self, *words: Any) -> bool | None:
        return self._may([word if type(word) is bytes else _text(word) for word in words])

    def _to_lua(self, reply: Reply) -> Any:
        if isinstance(reply, bytes | int):
            return reply
        if isinstance(reply, list):
            return self._table(
                [item if type(item) is bytes or type(item) is int else self._to_lua(item) for item in reply]
            )
        if isinstance(reply, Status):
            return self._status(reply.text)
        if isinstance(reply, ReplyError):
            return self._failure(reply.text, None)
        return False

    def _unpack(self, data: Any) -> Any:
        try:
            values = cmsgpack.Unpacker(data, self._table, self._mapping).all_values()
        except cmsgpack.BadMessageError as error:
            return False, str(error).encode(), 0
        return True, self._table(values), len(values)

    def _mapping(self, pairs: list[tuple[Any, Any]]) -> Any:
        table = self._new_table()
        for key, value in pairs:
            if key is None:
                raise cmsgpack.BadMessageError("table index is nil")
            table[key] = value
        return table


def _items_of(table: Any) -> Any:
    return table.items()


def _not_running(_words: list[bytes]) -> Reply:
    raise AssertionError("no script runs")


def _nobody_runs(_words: list[bytes]) -> bool | None:
    raise AssertionError("no script runs")


def _text(word: Any) -> bytes:
    """Return a number as Redis gives it to a command."""
    if isinstance(word, bool) or not isinstance(word, int | float):
        raise CallRejectedError(
            "ERR Lua redis lib command arguments must be strings or integers",
            "Lua redis() command arguments must be strings or integers",
        )
    if isinstance(word, int) and abs(word) < 10**17:
        return b"%d" % word
    return b"%.17g" % word


@cache
def engine(*, is_7: bool) -> LuaEngine:
    """Return the Lua state for servers of a kind."""
    return LuaEngine(is_7=is_7)
