"""The numbers of a process's settlements: one is under way at a time, and one that is sent again keeps its number."""

import secrets
from dataclasses import dataclass, field


@dataclass(slots=True)
class Numbers:
    """Rule W2 of docs/protocol.md. Shared by all of a process that settles or holds again."""

    caller: str = field(default_factory=lambda: secrets.token_hex(8))
    """A word that no other process uses."""
    latest: int = 0
    """Of the settlement that is under way, or was answered last."""
    answered: int = 0
    """Of the settlement that was answered last; 0 = none was."""

    @property
    def is_under_way(self) -> bool:
        """Tell whether a settlement has no answer yet."""
        return self.latest > self.answered

    def begin(self) -> int:
        """Return the number of a new settlement. Raises RuntimeError while one has no answer."""
        if self.is_under_way:
            raise RuntimeError(f"settlement {self.latest} has no answer yet")
        self.latest += 1
        return self.latest

    def end(self) -> None:
        """Note that the settlement under way was answered, or has surely done nothing and is given up."""
        self.answered = self.latest
