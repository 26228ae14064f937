"""Tunes Python's cyclic garbage collector for a program with many short-lived objects and few cycles."""

import gc

ALLOCATIONS = 50_000
"""New containers between two collections. With Python's own 700, a collection runs every few batches of jobs."""


def collect_seldom() -> None:
    """Collect less often, and never examine the present objects again: modules, classes, settings.

    Call it in a program, after all imports. A library must leave this to its program. Objects that are freed by their
    last reference do not wait for a collection, and nearly all are.
    """
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, *older)
