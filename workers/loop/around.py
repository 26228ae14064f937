"""What a program puts around its handlers: generator functions with one ``yield``, where the handler runs.

They see how it ends, and have no say in it: an exception that one of them swallows is raised all the same, and what one
of them raises is a failure of the job. So nothing is acknowledged that has not run to its end.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from anyio import from_thread

from workers.loop.handlers import Handler, Invoke, come_to, invoker, is_async
from workers.loop.job import Job
from workers.protocol.errors import ConfigurationError
from workers.runtime.children import FORKS, end_child

Around = Callable[[Job], AsyncIterator[None]] | Callable[[Job], Iterator[None]]
"""``async def`` or ``def``, with one ``yield``."""


def checked_around(function: Any) -> Any:
    """Return ``function``. Raises ConfigurationError where it cannot be put around a handler."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return function
    name = getattr(function, "__qualname__", repr(function))
    wrapped = getattr(function, "__wrapped__", None)
    if inspect.isgeneratorfunction(wrapped) or inspect.isasyncgenfunction(wrapped):
        raise ConfigurationError(f"{name} cannot go around handlers: it is decorated. Give the generator function.")
    raise ConfigurationError(
        f"{name} cannot go around handlers: it is not a generator function. Write `async def` or `def` with "
        "one `yield`, where the handler runs."
    )


def invoker_inside(arounds: Sequence[Around], handler: Handler, concurrency: int) -> Invoke:
    """Return how to call ``handler`` inside ``arounds``: the first is the outermost, ``async`` ones outside of others.

    A plain one runs where the handler does, in its thread, since sessions and locks belong to a thread.
    """
    outer: list[Callable[[Job], AbstractAsyncContextManager[None]]]
    outer = [asynccontextmanager(around) for around in arounds if inspect.isasyncgenfunction(around)]
    plain = [contextmanager(around) for around in arounds if inspect.isgeneratorfunction(around)]
    if is_async(handler):
        outer += [_in_event_loop(manager) for manager in plain]
    else:
        for manager in reversed(plain):
            handler = _inside_plain(manager, handler)
    invoke = invoker(handler, concurrency)
    for manager in reversed(outer):
        invoke = _inside(manager, invoke)
    return invoke


def _inside(manager: Callable[[Job], AbstractAsyncContextManager[None]], invoke: Invoke) -> Invoke:
    async def call(job: Job) -> object:
        context = manager(job)
        await context.__aenter__()
        forks = FORKS[0]
        try:
            answer = await come_to(await invoke(job))
            end_child(forks)  # what is around is to end once, in the process that began it
        except BaseException as error:
            end_child(forks, error)
            await context.__aexit__(type(error), error, error.__traceback__)
            raise  # whatever was made of it there
        await context.__aexit__(*_as_raised(answer))
        return answer

    return call


def _inside_plain(manager: Callable[[Job], AbstractContextManager[None]], handler: Handler) -> Handler:
    def call(job: Job) -> object:
        context = manager(job)
        context.__enter__()
        forks = FORKS[0]
        try:
            answer = handler(job)
            end_child(forks)
            if answer is not None:
                answer = from_thread.run(come_to, answer)
        except BaseException as error:
            end_child(forks, error)
            context.__exit__(type(error), error, error.__traceback__)
            raise
        context.__exit__(*_as_raised(answer))
        return answer

    return call


def _in_event_loop(
    manager: Callable[[Job], AbstractContextManager[None]],
) -> Callable[[Job], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def call(job: Job) -> AsyncIterator[None]:
        with manager(job):
            yield

    return call


def _as_raised(answer: object) -> tuple[type[BaseException] | None, BaseException | None, None]:
    """Return what a context is told at its end: of a verdict that was returned, that it was raised."""
    return (type(answer), answer, None) if isinstance(answer, BaseException) else (None, None, None)
