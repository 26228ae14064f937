"""Decides which streams the next read asks, and for how many deliveries. Pure."""

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

    With a single free slot, the streams are asked in turn, and together only after both were empty.
    """

    def __init__(self) -> None:
        self._turn = self._empty = 0

    def plan(self, sources: tuple[Source, ...], free: int) -> Plan:
        """Plan the next read for ``free`` slots, at least one."""
        if free >= len(sources) or self._empty >= len(sources):
            return Plan(sources, max(1, free // len(sources)))
        self._turn += 1
        return Plan((sources[self._turn % len(sources)],), 1, blocks=False)

    def learn(self, found: int) -> None:
        """Note how many deliveries a read has found."""
        self._empty = 0 if found else self._empty + 1
