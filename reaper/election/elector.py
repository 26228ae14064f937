"""Elects one leader among the replicas of a namespace, and keeps it honest.

It has two states, each with a method. `_follow` waits and attempts. `_lead` holds the lease while the work runs.
Leadership ends by itself. The work runs inside a cancel scope, and its deadline is the trust window, counted from
*before* the last successful renewal. So a renewal that hangs or fails does not have to be noticed. A monotonic clock
stops while a machine is suspended, hence the fencing token as well as the deadline.
"""

import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.election.lease import Attempt, Lease, Renewal, Renewed
from reaper.failpoints import failpoint
from reaper.settings import ReaperSettings
from workers.protocol.events import EventName, event_fields
from workers.protocol.log_fields import fields
from workers.protocol.meaning import in_words, is_contact_error, is_outage
from workers.runtime.clock import monotonic, monotonic_ms
from workers.runtime.redis_failures import RedisFailures

logger = logging.getLogger(__name__)

EXPIRY_JITTER_S = 0.1
"""Followers that wait for the same expiry do not attempt in the same instant."""
RELEASE_JITTER_S = 0.05
RELEASE_ATTEMPTS = 3
RELEASE_TIMEOUT_S = 1.0
FAILURE_PAUSE_S = 0.5
ELECTION = "election"
PROMPT_S = 1.0
"""An answer that took longer does not say what time the server has now."""


class EndOfTerm(StrEnum):
    """The reason for which a term ended."""

    RELEASED = "released"
    """The replica stops, or gave up on purpose."""
    STEPPED_DOWN = "stepped_down"
    """An operator asked the leader to release (`reaper leader step-down`)."""
    EXPIRED = "expired"
    """No renewal within the trust window."""
    NOT_OURS = "not_ours"
    """The lease is somebody else's, or gone."""
    STALE = "stale"
    """A fence refused a write: a later term acts."""
    TOKEN_BEHIND = "token_behind"  # noqa: S105 - a reason, no secret
    """A fence holds a token as high as ours: the counter was lost or went back, and has been raised."""
    FAILED = "failed"
    """The work raised an error nobody expected."""


@dataclass(frozen=True, slots=True)
class Term:
    """One period of leadership."""

    holder: str
    token: int
    started_ms: int
    """Server time."""


Work = Callable[[Term], Awaitable[EndOfTerm]]


class Elector:
    """Runs elections until cancelled. ``work`` is called for each term and cancelled when the term ends."""

    def __init__(
        self,
        client: Redis,
        reader: Redis,
        settings: ReaperSettings,
        replica_id: str,
    ) -> None:
        self._client = client
        self._reader = reader
        self._settings = settings
        self._keys = settings.namespace_keys
        self._ttl_s = settings.lease_ttl.total_seconds()
        self._lease = Lease(client, self._keys, round(self._ttl_s * 1000), settings.journal_maxlen)
        self._replica_id = replica_id
        self._journal_seen: bytes | None = None
        self._asked_at = 0.0
        self.troubles = RedisFailures()
        self.attempts = 0
        """How often Redis has answered to an attempt to be elected."""
        self._renewed_at: float | None = None
        """By the process's clock, not the loop's: it is read in threads that have none."""
        self.term: Term | None = None
        self.terms = 0
        self.renewals_failed = 0
        self.clock_offset_ms = 0
        """Server time minus our monotonic time, from the last contact."""

    @property
    def since_renewal_s(self) -> float | None:
        """Seconds since the last renewal that succeeded, while we lead by a lease. For any thread."""
        renewed_at = self._renewed_at
        return None if renewed_at is None else monotonic() - renewed_at

    async def run(self, work: Work, began: Callable[[Term], None], ended: Callable[[Term, EndOfTerm], None]) -> None:
        """Follow, lead, follow, and so on, with the callbacks ``began`` and ``ended`` for each term."""
        while True:
            term, trusted_until = await self._follow()
            self.term, self.terms = term, self.terms + 1
            logger.info("leadership acquired: %s", fields(token=term.token))
            began(term)
            end = EndOfTerm.RELEASED
            self._renewed_at = monotonic()
            try:
                end = await self._lead(term, trusted_until, work)
            finally:
                self.term = self._renewed_at = None
                ended(term, end)
                with anyio.CancelScope(shield=True):
                    await self._leave(term, end)
            if end is EndOfTerm.FAILED:
                await anyio.sleep(random.uniform(FAILURE_PAUSE_S, 2 * FAILURE_PAUSE_S))

    # ---- following

    async def _follow(self) -> tuple[Term, float]:
        """Attempt until the lease is ours. Return the term and the end of its trust window."""
        holder = f"{self._replica_id}.{secrets.token_hex(4)}@{round(self._ttl_s * 1000)}"
        try:
            return await self._attempt_until_won(holder)
        except anyio.get_cancelled_exc_class():
            # The attempt that was cut off may have won, so the lease must not stay behind.
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + RELEASE_TIMEOUT_S):
                with suppress(RedisError, OSError):
                    await self._lease.release(holder, 0, EndOfTerm.RELEASED)
            raise

    async def _attempt_until_won(self, holder: str) -> tuple[Term, float]:
        while True:
            started = anyio.current_time()
            attempt = await self._attempt(holder)
            if attempt is None:
                # The lost attempt may have won. The same holder asks again, and its own value counts as won.
                await anyio.sleep(random.uniform(0.1, FAILURE_PAUSE_S))
                continue
            if attempt.won:
                term = Term(holder, attempt.token, attempt.server_ms)
                return term, started + self._settings.trust.total_seconds()
            await self._wait_for_chance(attempt)

    async def _attempt(self, holder: str) -> Attempt | None:
        """Attempt once. Return None if the outcome is unknown."""
        self._asked_at = monotonic()
        try:
            if self._journal_seen is None:
                self._journal_seen = await self._newest_journal_entry()
            failpoint("elect.before_acquire")
            attempt = await self._lease.acquire(holder)
            failpoint("elect.after_acquire")
            self._note_contact(attempt.server_ms)
            self.attempts += 1
        except (RedisError, OSError) as error:
            self._note_failure(error, "acquire the lease")
            return None
        return attempt

    async def _wait_for_chance(self, attempt: Attempt) -> None:
        """Sleep until the lease can be free. That is its expiry, a release that wakes us, or the retry interval."""
        until_expiry = attempt.left_ms / 1000 + random.uniform(0.001, EXPIRY_JITTER_S)
        wait_s = min(until_expiry, self._settings.acquire_retry.total_seconds())
        try:
            woken = await self._journal_moved(wait_s)
        except (RedisError, OSError) as error:
            if is_contact_error(error):
                self._note_failure(error, "wait for a release")
            # A journal that cannot be read only costs the early wake-up.
            await anyio.sleep(wait_s)
            return
        if woken:
            await anyio.sleep(random.uniform(0, RELEASE_JITTER_S))

    async def _journal_moved(self, wait_s: float) -> bool:
        reply = await self._reader.execute_command(
            "XREAD", "COUNT", 100, "BLOCK", max(1, round(wait_s * 1000)), "STREAMS",
            self._keys.journal, self._journal_seen or b"0-0",
        )  # fmt: skip
        if not reply:
            return False
        self._journal_seen = reply[0][1][-1][0]
        return True

    async def _newest_journal_entry(self) -> bytes:
        try:
            rows = await self._client.execute_command("XREVRANGE", self._keys.journal, "+", "-", "COUNT", 1)
        except RedisError as error:
            if is_contact_error(error):
                raise
            return b"$"  # there is no stream, so followers wait for the expiry
        return bytes(rows[0][0]) if rows else b"0-0"

    # ---- leading

    async def _lead(self, term: Term, trusted_until: float, work: Work) -> EndOfTerm:
        """Run ``work`` while the lease is renewed. Return why the term ended."""
        end = EndOfTerm.EXPIRED
        with anyio.CancelScope(deadline=trusted_until) as trust:

            async def do_work() -> None:
                nonlocal end
                try:
                    end = await work(term)
                except Exception:
                    logger.exception("work of the leader failed: %s", fields(token=term.token))
                    end = EndOfTerm.FAILED
                trust.cancel()

            async def keep() -> None:
                nonlocal end
                end = await self._renew_until_lost(term, trust)
                trust.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(do_work)
                group.start_soon(keep)
        return end

    async def _renew_until_lost(self, term: Term, trust: anyio.CancelScope) -> EndOfTerm:
        """Renew, moving the deadline of ``trust``, until the lease is not ours or an operator wants it released."""
        failed = False
        while True:
            interval = self._settings.renew.total_seconds()
            await anyio.sleep(min(interval / 3, FAILURE_PAUSE_S) if failed else interval)
            started = anyio.current_time()
            self._asked_at = monotonic()
            try:
                failpoint("elect.before_renew")
                renewed = await self._renew(term)
                self._note_contact(renewed.server_ms)
            except (RedisError, OSError) as error:
                self.renewals_failed += 1
                self._note_failure(error, "renew the lease")
                failed = True
                continue
            if renewed.renewal is Renewal.NOT_OURS:
                return EndOfTerm.NOT_OURS
            if renewed.renewal is Renewal.ASKED_TO_STEP_DOWN:
                return EndOfTerm.STEPPED_DOWN
            trust.deadline = started + self._settings.trust.total_seconds()
            self._renewed_at = monotonic()
            failed = False

    async def _renew(self, term: Term) -> Renewed:
        """Renew once. An answer that does not come is given up early enough for another attempt within the trust."""
        patience_s = self._settings.renewal_patience.total_seconds()
        with anyio.move_on_after(patience_s):
            return await self._lease.renew(term.holder)
        raise TimeoutError(f"no answer for {patience_s:.2g} s")

    async def _leave(self, term: Term, end: EndOfTerm) -> None:
        """Release the lease in bounded time if it may still be ours. Otherwise it expires."""
        logger.info("leadership lost: %s", fields(token=term.token, reason=end))
        told = False
        for _ in range(RELEASE_ATTEMPTS):
            with anyio.move_on_after(RELEASE_TIMEOUT_S), suppress(RedisError, OSError):
                released = end is not EndOfTerm.NOT_OURS and await self._lease.release(term.holder, term.token, end)
                if not released and not told:
                    await self._journal_loss(term, end)
                return
            told = True  # an attempt with a lost reply may have written the end to the journal

    async def _journal_loss(self, term: Term, end: EndOfTerm) -> None:
        words = event_fields(EventName.LEASE_LOST, holder=term.holder, token=term.token, reason=end)
        await self._client.execute_command(
            "XADD", self._keys.journal, "MAXLEN", "~", self._settings.journal_maxlen, "*", *words
        )

    async def raise_token(self, term: Term, found: int) -> bool:
        """Raise the token counter above ``found``. Return False if the lease is not ours any more."""
        return await self._lease.raise_token(term.holder, found)

    # ---- contact

    def _note_contact(self, at_ms: int) -> None:
        if monotonic() - self._asked_at <= PROMPT_S:
            self.clock_offset_ms = at_ms - monotonic_ms()
        if self.troubles.works(ELECTION, monotonic()):
            logger.warning("Redis answers again")

    def is_not_served(self, error: BaseException) -> None:
        """Note that the replica cannot begin yet, as the server does not serve it."""
        self._note_failure(error, "begin")

    def _note_failure(self, error: BaseException, what: str) -> None:
        if self.troubles.failed(ELECTION, error, monotonic()):
            logger.warning(
                "cannot reach Redis: %s" if is_outage(error) else "Redis rejects the replica: %s",
                fields(doing=what, cause=in_words(error)),
            )
