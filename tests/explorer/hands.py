"""Calls of two workers for the tests of the scripts, in one line each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.explorer.board import LEASE, Board, Word, fields_of

A, B = "a~0123456789ab", "b~ffffffffffff"
TOKEN = 7
BUDGET = 1 << 20


@dataclass
class Hands:
    """Calls the scripts for workers. Each call has the next number by default."""

    board: Board
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def fresh(
        self,
        policy: str = "stream",
        recovery: str = "reaper",
        *,
        jobs: int = 1,
        limit: int = 3,
        body: Sequence[Word] | None = None,
    ) -> None:
        """Start over with a group and some jobs."""
        self.board.prepare(policy, recovery, limit=limit)
        for number in range(jobs):
            self.board.add(*(body or ("n", number)))

    def read(self, consumer: str, most: int = 10) -> list[bytes]:
        """Read new entries. Return their IDs."""
        return [entry_id for _, entry_id, _, _ in self.board.read(consumer, most)]

    def ack(
        self, consumer: str, *ids: bytes, source: str = "", number: int = 0, deletes: bool = False, caller: str = ""
    ) -> Any:
        """Say that jobs are done."""
        words: tuple[Word, ...] = (
            consumer,
            caller or consumer,
            number or next(self._numbers),
            int(deletes),
            len(ids),
            *ids,
        )
        return self.board.call("ack", source or self.board.keys.stream, *words)

    def settle(
        self, consumer: str, verb: str, *ids: bytes, times: int = 1, delay: int = 0, source: str = "", number: int = 0
    ) -> Any:
        """Give one verdict on each of ``ids``. Return the results or an error."""
        items: list[Word] = [word for one in ids for word in (verb, one, times, delay, "why", "error", "", 0)]
        words = (consumer, consumer, number or next(self._numbers), *items)
        return self.board.call("settle", source or self.board.keys.stream, *words)

    def extend(self, consumer: str, entry_id: bytes, *, times: int = 1, source: str = "", handling: int = 2) -> Any:
        """Send a heartbeat of one delivery. Return its result."""
        words = (consumer, entry_id, times, handling)
        return self.board.call("extend", source or self.board.keys.stream, *words)[0]

    def hold(self, consumer: str, entry_id: bytes, *, answered: int = 0) -> Any:
        """Take back what has vanished."""
        return self.board.call("hold", self.board.keys.stream, consumer, consumer, answered, entry_id, 1)

    def recover(self, *ids: bytes, source: str = "", lease: str = LEASE) -> Any:
        """Recover entries as the holder of the lease."""
        return self.board.call("recover", source or self.board.keys.stream, lease, TOKEN, BUDGET, *ids)

    def recover_stalled(self, *ids: bytes, source: str = "") -> Any:
        """Recover after a visibility timeout without a heartbeat."""
        self.board.age()
        return self.recover(*ids, source=source)

    def walk(self, consumer: str, room: int = 5) -> Any:
        """Recover by a page, as an embedded worker."""
        return self.board.call("recover", self.board.keys.stream, "", 0, BUDGET, consumer, "-", 100, room)

    def move_due(self, lease: str = LEASE) -> Any:
        """Move what is due, and look at the gate."""
        return self.board.call("move_due", self.board.keys.stream, lease, TOKEN, 100)

    def event_of(self, recovered: Any) -> dict[bytes, bytes]:
        """Return the one event of a recovery."""
        [event] = recovered[4]
        return fields_of(event)
