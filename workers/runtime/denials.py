"""Decides when recovery waits because Redis allowed none: pure, told what happened and when.

A user whose rights are withdrawn can be that of the workers, too: then nobody could settle or extend, and with the
rights given back everything looks idle while its worker lives, as after an outage. But a server that refuses is there,
and other commands may succeed all along. So after a refusal recovery asks first for nothing: with a call that comes
too late to do anything. Its answer says that the right is there again, and from then on live workers come first.

A server that takes nobody's writes (`workers.protocol.meaning.is_refused_to_workers`) is the same case: it is there, it
answers those who read, and no worker can settle or extend.
"""

TOO_LATE_MS = 0
"""When a recovery call has to have run that is to do nothing: any server's clock is past it."""
RECOVERING, SCANNING = "recovering", "scanning"
WHY_DENIED = "Redis did not allow our calls"


class Denials:
    """Remembers which parts of a group's recovery are refused for want of a right. Instants are monotonic ms."""

    def __init__(self) -> None:
        self._refused = set[str]()
        self._ended_ms: int | None = None
        self.is_open = False
        """The next recovery call has to ask for nothing."""

    def denied(self, part: str) -> None:
        """A call was refused for want of a right. Parts besides recovery count once until they work again.

        Else one that is refused for good would hold recovery back for good.
        """
        self.is_open = self.is_open or part == RECOVERING or part not in self._refused
        self._refused.add(part)

    def answered(self, part: str, now_ms: int) -> None:
        """A call was not refused for that."""
        if self.is_open and (part == RECOVERING or part in self._refused):
            self._ended_ms, self.is_open = now_ms, False
        self._refused.discard(part)

    def until(self, wait_ms: int) -> int:
        """Return the instant from which deliveries may be recovered that wait ``wait_ms``; 0 where nothing waits."""
        return 0 if self._ended_ms is None else self._ended_ms + wait_ms
