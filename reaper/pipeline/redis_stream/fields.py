"""Which fields of entries belong to which columns. Pure.

An entry is flat, as the wire has it: name, value, name, value …
"""

from collections.abc import Sequence

from reaper.pipeline.redis_stream.link import text_of
from reaper.pipeline.redis_stream.options import Options

Flat = list[bytes]
MOST_SHAPES = 1000
"""So many different lists of names are remembered at most."""


class Picker:
    """Finds the fields that columns ask for by Spark's rule: a name as it is, else one that differs in case only."""

    def __init__(self, wanted: Sequence[str], options: Options) -> None:
        self._fold = None if options.case_sensitive else options.fold
        self._wanted = wanted
        self._shapes: dict[tuple[bytes, ...], list[int | None]] = {}

    def pick(self, flats: Sequence[Flat], words: Sequence[tuple[bytes, ...]] | None) -> list[Sequence[bytes | None]]:
        """Return the values of each column, entry by entry; None where an entry lacks it. ``words``: `in_columns`.

        Where an entry has several fields of one name, the last one counts.
        """
        if words is not None:
            nothing: Sequence[None] = (None,) * len(flats)
            return [nothing if place is None else words[place] for place in self._places(flats[0])]
        picked: list[list[bytes | None]] = [[] for _ in self._wanted]
        for flat in flats:
            for values, place in zip(picked, self._places(flat), strict=True):
                values.append(None if place is None else flat[place])
        return list(picked)

    def rest(self, flats: Sequence[Flat], words: Sequence[tuple[bytes, ...]] | None) -> list[Flat]:
        """Return the entries without the fields that `pick` returns, nor others of their names."""
        if words is not None and not self._left_over(flats[0]):
            return [[]] * len(flats)
        rest: list[Flat] = []
        for flat in flats:
            left = self._left_over(flat)
            pairs = zip(flat[::2], flat[1::2], strict=True)
            rest.append([word for pair in pairs if pair[0] in left for word in pair])
        return rest

    def _left_over(self, flat: Flat) -> set[bytes]:
        return set(flat[::2]) - {flat[place - 1] for place in self._places(flat) if place is not None}

    def _places(self, flat: Flat) -> list[int | None]:
        """Return where the value of each column is in an entry. Entries of one stream hardly differ in their names."""
        names = tuple(flat[::2])
        found = self._shapes.get(names)
        if found is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            found = self._shapes[names] = self._find(names)
        return found

    def _find(self, names: tuple[bytes, ...]) -> list[int | None]:
        exact = {name: 2 * at + 1 for at, name in enumerate(names)}
        folded = {self._fold(text_of(name)): place for name, place in exact.items()} if self._fold else {}
        return [
            exact.get(column.encode(), folded.get(self._fold(column)) if self._fold else None)
            for column in self._wanted
        ]


def in_columns(flats: Sequence[Flat]) -> list[tuple[bytes, ...]] | None:
    """Turn entries into columns, of names and values in turn; None where they differ in their fields.

    Entries of one stream hardly ever do, and this is several times as fast as looking at each.
    """
    number, names = len(flats), flats[0][::2]
    try:
        words = list(zip(*flats, strict=True))
    except ValueError:  # they differ in length
        return None
    same = all(column.count(name) == number for column, name in zip(words[::2], names, strict=True))
    return words if same else None


def as_dict(flat: Flat) -> dict[bytes, bytes]:
    """Return an entry by the names of its fields; the last one of a name counts."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
