"""Python's cyclic garbage collector, set up for a program that makes many short-lived objects and hardly any cycles."""

import gc

ALLOCATIONS = 50_000
"""New containers between two collections; with Python's own 700, every few batches of jobs are looked at in passing."""


def collect_seldom() -> None:
    """Collect less often, and never look again at what is there now: modules, classes, settings.

    For programs of ours, once everything is imported; a library leaves that to its program. What is freed by its last
    reference, as nearly everything is, does not wait for a collection.
    """
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, *older)
