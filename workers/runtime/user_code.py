"""Distinguishes errors of users' functions, which are a failure of the function, or the end of its task or process.

``except Exception`` cannot distinguish them. Libraries in other languages raise BaseException in a panic. An awaited
function can leak a GeneratorExit or CancelledError. A task group puts exits into a group.
"""

import asyncio
from typing import Any, TypeVar, cast

ErrorT = TypeVar("ErrorT", bound=BaseException)
MAX_TEXT = 2_000
"""The longest error or reason in characters, because the dead letter contains it."""


def current_task() -> "asyncio.Task[Any] | None":
    """Return the current task. None outside of a task or of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def ends(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Return whether ``error`` of a user's function, which ``task`` called, ends the task or the process."""
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return current_task() is not task  # a coroutine that is thrown away is closed from outside
    return bool(exits_in(error))


def exits_in(error: BaseException) -> list[SystemExit | KeyboardInterrupt]:
    """Return the errors in ``error`` that end the process, also from nested groups."""
    found: list[SystemExit | KeyboardInterrupt] = []
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, SystemExit | KeyboardInterrupt):
            found.append(one)
        elif isinstance(one, BaseExceptionGroup):
            left += reversed(one.exceptions)
    return found


def plain_error(group: BaseExceptionGroup[BaseException], kind: type[ErrorT]) -> ErrorT | None:
    """Return the first error of ``kind`` in a task group's group, or None."""
    found: Any = group.subgroup(kind)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return cast("ErrorT | None", found)


def describe(error: BaseException) -> str:
    """Return ``Type: message``, also if the message cannot be read."""
    try:
        message = str(error)
    except BaseException as unreadable:  # a user's exception class may do anything
        if exits_in(unreadable):
            raise
        message = "(its message could not be read)"
    name = type(error).__name__
    return clipped(f"{name}: {message}" if message else name)


def clipped(text: object) -> str:
    """Return at most `MAX_TEXT` characters of a text, as valid UTF-8."""
    # Exceptions about file names can contain lone surrogates, which UTF-8 does not allow.
    clean = str(text).encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"
