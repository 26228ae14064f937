"""Makes a story that fails shorter, as long as it fails in the same way: delta debugging over faults and jobs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tests.simulation.story import Story

ItemT = TypeVar("ItemT")
Fails = Callable[[Story], bool]
MOST_PLAYS = 300
"""Plays that a story is worth."""


def kinds_of(violations: Iterable[str]) -> frozenset[str]:
    """Return the names of the promises that were broken."""
    return frozenset(sentence.partition(":")[0] for sentence in violations)


def shrink(story: Story, fails: Fails, *, most_plays: int = MOST_PLAYS) -> Story:
    """Return the shortest story of these faults and jobs that still fails, as far as so many plays find it."""
    left = most_plays

    def still_fails(candidate: Story) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    before = None
    while before != (len(story.steps), len(story.jobs)) and left > 0:
        before = len(story.steps), len(story.jobs)
        story = _with_fewest(story, "steps", still_fails)
        story = _with_fewest(story, "jobs", still_fails)
    return story


def _with_fewest(story: Story, what: str, fails: Fails) -> Story:
    def with_some(some: Any) -> Story:
        return replace(story, steps=some) if what == "steps" else replace(story, jobs=some)

    return with_some(_fewest(getattr(story, what), lambda some: fails(with_some(some))))


def _fewest(items: Sequence[ItemT], fails: Callable[[Any], bool]) -> tuple[ItemT, ...]:
    """Leave out what is not needed: halves first, then quarters, and in the end one by one."""
    kept = tuple(items)
    size = len(kept)
    while size >= 1 and kept:
        at, dropped = 0, False
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if fails(fewer):
                kept, dropped = fewer, True
            else:
                at += size
        if not dropped or size > len(kept):
            size = min(size // 2, max(1, len(kept))) if size > 1 else 0
    return kept
