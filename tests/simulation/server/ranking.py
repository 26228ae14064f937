"""A sorted set: members by score, equal scores by their bytes."""

from bisect import bisect_left, insort


class SortedSet:
    """Members and their scores."""

    __slots__ = ("rows", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.rows: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, member: bytes, score: float) -> None:
        """Set the score of a member, which may be new."""
        self.remove(member)
        self.scores[member] = score
        insort(self.rows, (score, member))

    def remove(self, member: bytes) -> bool:
        """Forget a member; tell whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.rows[bisect_left(self.rows, (score, member))]
        return True

    def copy(self) -> "SortedSet":
        """Return the same again."""
        twin = SortedSet()
        twin.scores, twin.rows = dict(self.scores), self.rows[:]
        return twin
