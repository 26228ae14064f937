"""What functions of users' programs raise: a failure of theirs, or the end of the task or the process they run in.

``except Exception`` does not tell the two apart. Libraries in other languages raise BaseException where they panic, a
GeneratorExit or CancelledError may leak out of something that was awaited; and a task group puts exits into a group.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any, TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)
MAX_TEXT = 2_000
"""Characters of an error or a reason that are kept: it travels with the dead letter."""
_MEMBERS: Any = vars(BaseExceptionGroup)["exceptions"]


def current_task() -> "asyncio.Task[Any] | None":
    """Return the task that is running here; None where there is none, or no event loop (any more)."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def ends(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Tell whether ``error``, out of a user's function that ``task`` has called, ends that task or the process."""
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return current_task() is not task  # a coroutine that is thrown away is closed from outside
    return bool(exits_in(error))


def exits_in(error: BaseException) -> list[SystemExit | KeyboardInterrupt]:
    """Return the ends of the process that ``error`` is, or that a task group has put into it, however deep."""
    found: list[SystemExit | KeyboardInterrupt] = []
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, SystemExit | KeyboardInterrupt):
            found.append(one)
        elif isinstance(one, BaseExceptionGroup):
            left += reversed(_MEMBERS.__get__(one))  # a class of the user's may have an attribute of that name
    return found


def plain_error(group: BaseExceptionGroup[BaseException], kind: type[ErrorT]) -> ErrorT | None:
    """Return the first error of ``kind`` in a task group's group, or None."""
    found = group.subgroup(kind)
    while found is not None:
        first = found.exceptions[0]
        if not isinstance(first, BaseExceptionGroup):
            return first
        found = first
    return None


def log_failure(logger: logging.Logger, level: int, error: BaseException, message: str, *words: object) -> None:
    """Log what a user's function raised. Raises nothing: no job and no worker may fail because it cannot be told.

    Groups within groups are formatted by recursion, and handlers of `logging` let its error through.
    """
    for told in (error, None):
        with suppress(Exception):
            logger.log(level, message, *words, exc_info=told)
            return


def describe(error: BaseException) -> str:
    """Return ``Type: message``, also where the message cannot be had."""
    try:
        message = str(error)
    except BaseException as unreadable:  # a user's exception class may do anything
        if exits_in(unreadable):
            raise
        message = "(its message could not be read)"
    name = type(error).__name__
    return clipped(f"{name}: {message}" if message else name)


def clipped(text: object) -> str:
    """Return at most `MAX_TEXT` characters of a text, as UTF-8 can have them."""
    # Exceptions about file names hold lone surrogates, which no UTF-8 text can.
    clean = str(text).encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"
