"""Decides which streams the next read asks, and for how many deliveries. Pure."""

from collections import Counter
from dataclasses import dataclass

from workers.loop.in_flight import Source


@dataclass(frozen=True, slots=True)
class Plan:
    """The streams and the COUNT of one read. COUNT applies to each stream."""

    sources: tuple[Source, ...]
    count: int
    blocks: bool = True


class Planner:
    """Splits the free slots between the stream and the retry stream. Pure.

    Both are read together, each for half of the slots. If one was full and the other one empty, the next read asks only
    the full one, and does not block. With a single free slot, the streams are asked in turn, and together only after
    both were empty.
    """

    def __init__(self) -> None:
        self._alone: Source | None = None
        self._turn = 0

    def plan(self, sources: tuple[Source, ...], free: int) -> Plan:
        """Plan the next read for ``free`` slots, at least one."""
        if len(sources) == 1:
            return Plan(sources, free)
        if self._alone in sources and free > 1:
            return Plan((self._alone,), free, blocks=False)
        if free > 1:
            return Plan(sources, free // 2)
        if self._turn < len(sources):
            return Plan((sources[-1 - self._turn],), 1, blocks=False)
        return Plan(sources, 1)

    def learn(self, plan: Plan, sources: tuple[Source, ...], found: Counter[str]) -> None:
        """Note how many deliveries a read has found, by the key of their source."""
        full = [source for source in plan.sources if found[source.key] == plan.count]
        empty = [source for source in plan.sources if not found[source.key]]
        self._alone = full[0] if len(full) == 1 and len(empty) == 1 else None
        if plan.sources == sources:
            self._turn = 0
        else:
            self._turn += 1
        if found.total():
            self._turn %= len(sources)
