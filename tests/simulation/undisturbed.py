"""Takes a simulated world down silently, because a process that is killed in its work leaves objects behind."""

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anyio._backends import _asyncio as anyio_backend

from tests.simulation.loop import SimulatedLoop

MOST_AWAITS = 50
"""How many times a ``finally`` block may wait before its task is dropped."""

MOST_ROUNDS = 50


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect garbage only after the block, because in it that would be part of the story."""
    was_collecting = gc.isenabled()
    gc.disable()
    gc.freeze()  # so that collecting costs only what the story has made
    with _silence():
        try:
            yield
        finally:
            for _ in range(MOST_ROUNDS):  # objects that a finalizer releases are garbage afterwards
                if not gc.collect():
                    break
            gc.unfreeze()
            if was_collecting:
                gc.enable()


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress complaints about open connections and coroutines that were never awaited."""
    hook, sys.unraisablehook = sys.unraisablehook, _say_nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            sys.unraisablehook = hook


def take_down(loop: SimulatedLoop) -> None:
    """Drop all tasks of a loop, and close it."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with _silence():
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        for task in list(anyio_backend._task_states):  # scopes, timers and this loop keep them for ever
            if task.get_loop() is loop:
                del anyio_backend._task_states[task]
        loop.forget_everything()
        loop.close()
    logging.disable(disabled)


def _close(coroutine: Any) -> None:
    for _ in range(MOST_AWAITS):
        try:
            coroutine.close()
        except RuntimeError:  # it waits in a `finally` block
            continue
        except BaseException:  # noqa: BLE001
            return
        return


def _say_nothing(_unraisable: object) -> None:
    """Ignore how it ends."""
