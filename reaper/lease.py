"""The lease of one group in Redis. Each call is one script. A lease of another replica is an answer, not an error."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from redis.asyncio import Redis

from reaper.context import ReplicaContext
from reaper.pipelined import Answered
from reaper.settings import WatchedGroup
from workers.protocol.calls import GroupCalls
from workers.protocol.messages import text
from workers.protocol.scripts import load_script
from workers.runtime.settings import to_ms

LEASE_TAKE = load_script("reaper", "lease_take")
TICK = load_script("reaper", "tick")
LEASE_HAND = load_script("reaper", "lease_hand")
INSPECT_LAYOUT = load_script("reaper", "inspect_layout")

OFFER = "offer:"
"""Begins the value of a lease that was handed over. The ID of the replica that may take it follows."""
OFFER_MS = 2_000
"""How long only that replica may take the lease."""
PAGE = 500
"""Pending entries that a tick or a call of a scan reads."""


class EndOfTerm(StrEnum):
    """The reason for which a term ended."""

    STOPPED = "stopped"
    """The replica stops, or does not watch the group any more."""
    HANDED_OVER = "handed_over"
    """Another replica comes first for the group."""
    NOT_OURS = "not_ours"
    """A call found that the lease has expired, or that another replica has it."""
    FAILED = "failed"
    """The work raised an unexpected error."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to an attempt to take a lease."""

    holder: str
    """Value of the lease, of this replica or another one."""
    token: int = 0
    """Number of the term in its group. 0 = another replica holds the lease, for ``left_ms``."""
    left_ms: int = 0
    unsupported: str = ""
    """Why the policy cannot work with this stream. '' = it can."""
    before: tuple[str, ...] = ()
    """The former policy, visibility timeout (ms), max_deliveries and recovery mode of the group."""


class GroupLease:
    """The lease of one group, for one replica. Methods raise redis-py's errors."""

    def __init__(self, context: ReplicaContext, group: WatchedGroup) -> None:
        self.group = group
        self.keys = group.keys
        self.replica_id = context.replica_id
        self._client = context.leases
        self._ttl_ms = to_ms(context.settings.lease_of(group.visibility_timeout))
        self._journal_limit = context.settings.journal_limit

    def new_holder(self) -> str:
        """Return the value of the lease in a new term. A call of an earlier term cannot pass for one of this term."""
        return f"{self.replica_id}.{secrets.token_hex(8)}@{self._ttl_ms}"

    async def take(self, holder: str, *, token: int = 0) -> Taken:
        """Take the lease if it is free or offered to this replica, and write the group settings (``lease_take.lua``).

        After a lost reply, the holder may call it again. With ``token``, the term of that number goes on, or the lease
        is not taken.
        """
        keys, group = self.keys, self.group
        words = GroupCalls(keys, self._journal_limit).spell(
            keys.stream, holder, self._ttl_ms, self.replica_id, group.redelivery, to_ms(group.visibility_timeout),
            group.max_deliveries, token, more_keys=(keys.lease,),
        )  # fmt: skip
        won, *reply = await LEASE_TAKE.run(self._client, *words)
        if not won:
            return Taken(text(reply[0]), left_ms=reply[1])
        token, _, unsupported, *before = reply
        return Taken(holder, token, unsupported=text(unsupported), before=tuple(map(text, before)))

    def tick(self, holder: str, after: bytes, retry_after: bytes, answered: Answered, *, scans: bool) -> None:
        """Extend the lease, note a beat, and read new deliveries of the stream and the retry stream (``tick.lua``).

        ``after`` and ``retry_after`` are starts of ``XPENDING``. ``retry_after`` is empty without a retry stream.
        With ``scans``, a full scan follows.
        """
        keys = self.keys
        self._client.ask_script(
            TICK,
            [keys.stream, keys.settings, keys.journal, keys.retry, keys.lease, keys.schedule, keys.stream_schedule],
            [holder, self._ttl_ms, keys.group, after, retry_after, PAGE, int(scans)],
            answered,
        )

    async def hand(self, holder: str, to: str, why: str) -> None:
        """Offer the lease of ``holder`` to replica ``to``, or free it if ``to`` is empty. ``why`` is journaled."""
        keys = self.keys
        args = (keys.group, self._journal_limit, holder, to, OFFER_MS, why)
        await LEASE_HAND.run(self._client, (keys.lease, keys.settings, keys.journal), args)

    def look(self, answered: Callable[[str | Exception], None]) -> None:
        """Pass the value of the lease to ``answered``, '' if it is free, or an error of redis-py."""
        self._client.ask(
            ("GET", self.keys.lease),
            lambda found: answered(found if isinstance(found, Exception) else text(found or b"")),
        )


async def unsupported_layout(client: Redis, stream: str, redelivery: str) -> str:
    """Return what `GroupLease.take` returns as ``unsupported``, without taking a lease. Raises redis-py's errors."""
    return text(await INSPECT_LAYOUT.run(client, [stream], [redelivery]))
