"""Numbers the settlement calls of a process. One is under way at a time. A repeated call keeps its number."""

import secrets
from dataclasses import dataclass, field


@dataclass(slots=True)
class Numbers:
    """Rule W2 of docs/protocol.md. All callers of `settle`, `ack` and `hold` of a process share it."""

    caller: str = field(default_factory=lambda: secrets.token_hex(8))
    """A word that no other process uses."""
    latest: int = 0
    """Number of the call that is under way, or was answered last."""
    answered: int = 0
    """Number of the call that was answered last. 0 before the first one."""

    @property
    def is_under_way(self) -> bool:
        """Whether a call has no answer yet."""
        return self.latest > self.answered

    def begin(self) -> int:
        """Return the number of a new call. Raises RuntimeError while one has no answer."""
        if self.is_under_way:
            raise RuntimeError(f"settlement {self.latest} has no answer yet")
        self.latest += 1
        return self.latest

    def end(self) -> None:
        """Note that the call under way was answered, or certainly had no effect."""
        self.answered = self.latest
