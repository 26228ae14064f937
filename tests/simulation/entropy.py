"""One seed for everything that is drawn while a story is played, by the world and by the product.

The product asks the module `random`, and the operating system for names that nobody else has; both are the machine's,
and so are the simulation's to give, as are process IDs and the host's name. What libraries keep in sets goes by the
addresses of objects, which differ from run to run; tasks and cancel scopes are numbered instead.
"""

import asyncio
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

from anyio._backends import _asyncio as anyio_backend


@contextmanager
def drawn_from(seed: str) -> Iterator[None]:
    """Draw everything from ``seed`` while the block runs."""
    before = random.getstate()
    random.seed(f"product {seed}")
    of_the_system = random.Random(f"system {seed}")
    with (
        mock.patch.object(os, "getpid", _process_id),
        mock.patch.object(socket, "gethostname", _host),
        mock.patch.object(os, "urandom", of_the_system.randbytes),
        mock.patch.object(random, "_urandom", of_the_system.randbytes),
        mock.patch.object(anyio_backend.CancelScope, "__hash__", _scopes()),
    ):
        yield
    random.setstate(before)


def _process_id() -> int:
    return 1


def _host() -> str:
    return "simulated"


def _scopes() -> Any:
    numbers: dict[int, int] = {}
    kept: list[Any] = []  # an address is given to somebody else once its object is gone
    following = count()

    def number_of(scope: Any) -> int:
        address = id(scope)
        if address not in numbers:
            numbers[address] = next(following)
            kept.append(scope)
        return numbers[address]

    return number_of


class NumberedTask(asyncio.Task[Any]):
    """A task that sets keep in an order of its own."""

    _following = count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._number = next(NumberedTask._following)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


def number_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Number the tasks of a loop from 0."""
    NumberedTask._following = count()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        return NumberedTask(coroutine, loop=loop, **options)

    loop.set_task_factory(make)
