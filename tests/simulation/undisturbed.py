"""Takes a simulated world down without a word: what is killed in the middle of its work leaves nothing tidy behind."""

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.loop import SimulatedLoop

MOST_AWAITS = 50
"""So many times may a ``finally`` block wait for something before it is left alone."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect no garbage while the block runs, for when that happens would be part of the story; and then all of it."""
    was_collecting, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    gc.freeze()  # so that collecting costs only what the story has made
    try:
        yield
    finally:
        sys.unraisablehook = _say_nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        sys.unraisablehook = hook
        gc.unfreeze()
        if was_collecting:
            gc.enable()


def take_down(loop: SimulatedLoop) -> None:
    """Drop all tasks of a loop, and close it."""
    disabled, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = _say_nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        loop.forget_everything()
        loop.close()
    sys.unraisablehook = hook
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
    """Nobody cares how it ends."""
