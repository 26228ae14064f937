"""One typed call a script: keys and arguments are spelt here, and replies are read here, once for everybody.

Each call names the ``.lua`` file in ``workers/protocol/lua/`` that is its contract. All raise what redis-py raises.
What a call did is its result, a refusal among them; an effect is unknown only where contact was lost.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Self, TypeVar

from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN

CALL_BYTES = 512 * 1024
"""Payload after which a call puts off the rest of its work: no call may block the server for more than 5 ms."""

ItemT = TypeVar("ItemT")


def in_calls(
    items: Iterable[ItemT], bytes_of: Callable[[ItemT], int], *, most: int, most_bytes: int
) -> Iterator[list[ItemT]]:
    """Split what is to be sent into calls, by number and by bytes; one item may go beyond those."""
    call: list[ItemT] = []
    size = 0
    for item in items:
        call.append(item)
        size += bytes_of(item)
        if len(call) == most or size >= most_bytes:
            yield call
            call, size = [], 0
    if call:
        yield call


class Journal(NamedTuple):
    """What scripts are told of the journal: two of their arguments, in this order."""

    writes: int
    """1 = write lifecycle events there."""
    maxlen: int

    @classmethod
    def at(cls, journals: bool, maxlen: int) -> Self:
        """Return the arguments for these settings."""
        return cls(int(journals), maxlen)


DEFAULT_JOURNAL = Journal.at(True, DEFAULT_JOURNAL_MAXLEN)
