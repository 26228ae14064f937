"""The lease in Redis, with its calls to acquire, renew and release it.

Each call is one script. Its answer is an outcome, not an error.
"""

from dataclasses import dataclass
from enum import IntEnum

from redis.asyncio import Redis

from workers.protocol.keys import NamespaceKeys
from workers.protocol.messages import text
from workers.protocol.scripts import load_script


class Renewal(IntEnum):
    """The outcome of a renewal. Numbers as in ``renew_lease.lua``."""

    NOT_OURS = 0
    RENEWED = 1
    ASKED_TO_STEP_DOWN = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of an attempt to acquire.

    ``token`` is 0 if the lease was not acquired. ``left_ms`` is the time that the lease has left.
    """

    won: bool
    token: int
    holder: str
    left_ms: int
    server_ms: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The outcome of a renewal, and the server's time."""

    renewal: Renewal
    server_ms: int


ACQUIRE_LEASE = load_script("reaper", "acquire_lease")
RENEW_LEASE = load_script("reaper", "renew_lease")
RELEASE_LEASE = load_script("reaper", "release_lease")
RAISE_TOKEN = load_script("reaper", "raise_token")


@dataclass(frozen=True, slots=True)
class Lease:
    """Leadership of one namespace for a bounded time. All methods raise what redis-py raises."""

    client: Redis
    keys: NamespaceKeys
    ttl_ms: int
    journal_maxlen: int

    async def acquire(self, holder: str) -> Attempt:
        """Take the lease if it is free, or confirm that ``holder`` has it already (a lost reply)."""
        keys = [self.keys.lease, self.keys.token, self.keys.replicas, self.keys.journal, self.keys.step_down]
        reply = await ACQUIRE_LEASE.run(self.client, keys, [holder, self.ttl_ms, self.journal_maxlen])
        won, token, current, left_ms, server_ms = reply
        return Attempt(bool(won), int(token), text(current), int(left_ms), int(server_ms))

    async def renew(self, holder: str) -> Renewed:
        """Extend the lease if ``holder`` still has it."""
        code, server_ms = await RENEW_LEASE.run(
            self.client, [self.keys.lease, self.keys.step_down], [holder, self.ttl_ms]
        )
        return Renewed(Renewal(code), int(server_ms))

    async def release(self, holder: str, token: int, reason: str) -> bool:
        """Release the lease and wake the followers. Return whether it was ``holder``'s."""
        keys = [self.keys.lease, self.keys.journal]
        return bool(await RELEASE_LEASE.run(self.client, keys, [holder, token, reason, self.journal_maxlen]))

    async def raise_token(self, holder: str, at_least: int) -> bool:
        """Raise the token counter to ``at_least``, so that the next term's token is higher.

        Return False if ``holder`` does not hold the lease.
        """
        return bool(await RAISE_TOKEN.run(self.client, [self.keys.lease, self.keys.token], [holder, at_least]))
