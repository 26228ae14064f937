"""The handlers of programs. Decides which ones can run jobs, how to call them, and the outcome of their answers.

A call is not always a run. A call of a generator function runs no line, and neither does a coroutine that is not
awaited. That must never look like a finished call.
"""

import asyncio
import concurrent.futures
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from anyio import CapacityLimiter, to_thread

from workers.loop.job import Job
from workers.protocol.errors import ConfigurationError
from workers.runtime.children import FORKS, end_child

Handler = Callable[[Job], Any]
"""A function of a program, as ``async def handle(job)``, or as a plain ``def``, which runs in a thread."""

Invoke = Callable[[Job], Awaitable[object]]


class UnusableAnswerError(Exception):
    """The result of a handler leaves open whether it has done its work."""


# ---- registering


def checked(handler: Handler) -> Handler:
    """Return ``handler``. Raises ConfigurationError if a call would run no line of it."""
    name = getattr(handler, "__qualname__", None) or f"an instance of {type(handler).__qualname__}"
    if not callable(handler):
        raise ConfigurationError(f"{name} cannot be a handler: it cannot be called. Give a function.")
    if inspect.isclass(handler):
        raise ConfigurationError(
            f"the class {name} cannot be a handler: calling it only makes an object. Give its instance, or a function."
        )
    if not is_async(handler) and _generates(handler):
        raise ConfigurationError(
            f"{name} cannot be a handler: it is a generator function (it has a `yield`), so a call does not run it. "
            "Write `def` or `async def` without `yield`."
        )
    return handler


def _generates(handler: Handler) -> bool:
    """Return whether a call makes a generator, also through decorators, partials and ``__call__``."""
    function = inspect.unwrap(handler)
    if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
        function = type(function).__call__
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


# ---- calling


def invoker(handler: Handler, concurrency: int) -> Invoke:
    """Return a way to call ``handler``. A plain function runs in a thread of a pool.

    A thread cannot be stopped. After a cancellation it goes on by itself, and its result is not settled.
    """
    if is_async(handler):
        return handler
    threads = CapacityLimiter(concurrency)

    def call(job: Job) -> object:
        forks = FORKS[0]
        try:
            answer = handler(job)
            end_child(forks)  # in a thread of its own, it would wait for ever, and its parent for it
        except GeneratorExit as error:  # thrown into the task that waits for it, it would close every coroutine there
            end_child(forks, error)
            raise RuntimeError("the handler raised GeneratorExit") from error
        except BaseException as error:
            end_child(forks, error)
            raise
        return answer

    async def call_in_thread(job: Job) -> object:
        return await to_thread.run_sync(call, job, abandon_on_cancel=True, limiter=threads)

    return call_in_thread


def is_async(handler: Handler) -> bool:
    """Return whether a call of ``handler`` returns a coroutine, also for objects with an async ``__call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind matters, not whether it can be called
    )


# ---- results


async def outcome_of(answer: object) -> object:
    """Return the outcome of a handler's ``answer``, after awaiting it if possible.

    Raises UnusableAnswerError for a generator or an exception class, and the exceptions of the awaited objects.
    """
    while True:
        if isinstance(answer, concurrent.futures.Future):
            answer = asyncio.wrap_future(answer)
        if not inspect.isawaitable(answer):
            break
        awaited, answer = answer, await answer
        if answer is awaited:  # connection pools do that
            return answer
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        raise UnusableAnswerError(
            "the handler returned a generator, which has not run. Iterate over it in the handler."
        )
    if isinstance(answer, type) and issubclass(answer, BaseException):
        raise UnusableAnswerError(f"the handler returned the class {answer.__qualname__}. Raise or return an instance.")
    return answer
