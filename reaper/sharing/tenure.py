"""One group, as one replica sees it: wait for the lease, hold it, leave it, and wait again."""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
from redis.exceptions import RedisError

from reaper.failpoints import failpoint
from reaper.layout import layout_refusal, server_refusal
from reaper.lease import OFFER_MS, EndOfTerm, GroupLease, Taken, Term
from reaper.reasons import FEW_GROUPS
from reaper.recovery.context import ReplicaContext
from reaper.recovery.group_watch import GroupWatch
from reaper.recovery.notes import GroupNotes, settings_report
from reaper.recovery.verdict import Verdict
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from reaper.sharing.ranking import ranked
from workers.protocol.log_fields import fields
from workers.runtime.clock import monotonic_ms

logger = logging.getLogger(__name__)

TAKE = "take the lease"
RETRY_S = (0.1, 0.5)
"""Pause after an attempt whose outcome is unknown."""
UNABLE_S = 1.0
"""Pause before a server is asked again that does not support the policy of the group."""
EXPIRY_JITTER_S = 0.05
"""Replicas that wait for the same expiry do not attempt in the same instant."""
LOOKS = 9
"""The second in the order looks every so many ticks whether somebody holds the lease, the third half as often."""
LEAVE_S, TAKEN_S = 10.0, 0.5
"""For so long a replica tries to hand a lease over, and waits until the other one has taken it."""
KEEPS = 30
"""A replica keeps a lease for so many ticks that those who come first have not taken, and then offers it again."""
FAILURE_PAUSE_S = 0.5


class Tenure:
    """One group. `run` must be running."""

    def __init__(self, context: ReplicaContext, group: WatchedGroup, able: Callable[[], Sequence[str] | None]) -> None:
        """``able`` returns the replicas that may hold the group, None while they are unknown."""
        self._context = context
        self._able = able
        self._use(group)
        self._scope = anyio.CancelScope()
        self._wakes = anyio.Event()
        self._is_noticed = False
        self._was_free = False
        self._look_at_s = self._keeps_until_s = 0.0
        self._holder = ""
        """The value that we take the lease by; '' = the next attempt draws one."""
        self._token = 0
        """Of the term that goes on after a reload."""
        self._may_be_ours = False
        """The lease may have that value: after a reload, and after an attempt without an answer."""
        self._end: Callable[[EndOfTerm], None] | None = None
        self._watch: GroupWatch | None = None
        self.has_answer = False
        """Redis has said who holds the lease."""
        self.terms = 0

    def _use(self, group: WatchedGroup) -> None:
        settings = self._context.settings
        self.group = group
        self._lease = GroupLease(
            self._context.leases, self._context.ticks, group, self._context.replica_id, settings.lease_of(group),
            settings.journal_limit,
        )  # fmt: skip
        self._tick_s = settings.tick_of(group).total_seconds()
        self._notes = GroupNotes(group, self._context.callbacks, self._context.changed)
        self._verdict = Verdict(monotonic_ms()) if settings.observe else None

    # ---- from outside

    async def run(self) -> None:
        """Serve the group whenever it is ours, until cancelled or stopped. Errors of Redis do not end it."""
        with self._scope, self._context.notices.waking(self._notice, [self._lease.keys.lease]):
            while True:
                term = await self._follow()
                end = await self._hold(term)
                self._notes = GroupNotes(self.group, self._context.callbacks, self._context.changed)
                if end is EndOfTerm.FAILED:
                    await anyio.sleep(random.uniform(FAILURE_PAUSE_S, 2 * FAILURE_PAUSE_S))

    def stop(self) -> None:
        """Leave the group for good."""
        self._scope.cancel()

    def reload(self, group: WatchedGroup) -> None:
        """Serve the group with other settings. A lease that we hold stays ours."""
        self._use(group)
        if self._end:
            self._end(EndOfTerm.RELOADED)

    def rerank(self) -> None:
        """Look again who comes first for the group: a replica has come or gone."""
        self._wakes.set()
        is_first = self._order[:1] in ([], [self._context.replica_id])
        if self._end and not is_first and anyio.current_time() >= self._keeps_until_s:
            self._end(EndOfTerm.HANDED_OVER)

    def _notice(self) -> None:
        self._is_noticed = True
        self._wakes.set()

    @property
    def _order(self) -> list[str]:
        """The replicas that may hold the group, the first one first."""
        return ranked(self._able() or (), self.group.keys.pair)

    # ---- waiting

    async def _follow(self) -> Term:
        """Wait until the lease is ours."""
        try:
            while True:
                self._wakes = anyio.Event()
                self._holder = self._holder or self._lease.new_holder()
                try:
                    term, wait_s = await self._try(self._holder)
                except (RedisError, OSError) as error:
                    # The attempt may have won. The same holder asks again, and its own value counts as won.
                    self._notes.failed(TAKE, error)
                    term, wait_s = None, random.uniform(*RETRY_S)
                if term:
                    self._holder = ""
                    return term
                with anyio.move_on_after(wait_s):
                    await self._wakes.wait()
        except anyio.get_cancelled_exc_class():
            if self._may_be_ours:  # the attempt that was cut off may have won, so the lease must not stay behind
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1), suppress(RedisError, OSError):
                    await self._lease.hand(self._holder, "", EndOfTerm.STOPPED)
            raise

    async def _try(self, holder: str) -> tuple[Term | None, float]:
        """Take the lease if it is our turn. Return the term, or None and when to try again (s)."""
        order, me = self._order, self._context.replica_id
        if me not in order and not self._may_be_ours:  # unknown yet, or drained
            return None, self._tick_s
        rank = order.index(me) if me in order else len(order)
        if self._context.settings.observe:
            self.has_answer = True
            return (await self._observe() if rank == 0 else None), self._tick_s
        if rank and not self._may_be_ours and (wait_s := await self._wait_s_of_others(rank)):
            return None, wait_s
        self._is_noticed = self._was_free = False
        return await self._attempt(holder)

    async def _observe(self) -> Term:
        """Begin a term without writes, and report whether the policy could work."""
        client, keys, policy = self._context.client, self.group.keys, self.group.redelivery
        refusal = await server_refusal(client, keys, policy) or await layout_refusal(client, keys.stream, policy)
        self._notes.layout(refusal)
        self._notes.worked(TAKE)
        return Term("", 0)

    async def _wait_s_of_others(self, rank: int) -> float:
        """Return for how long to leave the lease to those who come first; 0 = not at all.

        It is ours if it was offered to us, and if it was free at two looks.
        """
        now = anyio.current_time()
        if not self._is_noticed and self._look_at_s > now:
            return self._look_at_s - now
        self._is_noticed = False
        async with self._context.room:
            found = await self._lease.held_by()
        self.has_answer = True
        self._notes.worked(TAKE)
        if found == f"offer:{self._context.replica_id}":
            self._keeps_until_s = now + OFFER_MS / 1000  # a replica that leaves may still come first for a moment
            return 0
        if not found and self._was_free:
            self._keeps_until_s = now + KEEPS * self._tick_s
            return 0
        self._was_free = not found
        pause_s = self._tick_s * (LOOKS * rank * random.uniform(0.5, 1) if found else random.uniform(1, 2))
        self._look_at_s = now + pause_s
        return pause_s

    async def _attempt(self, holder: str) -> tuple[Term | None, float]:
        unable = await server_refusal(self._context.client, self.group.keys, self.group.redelivery)
        if unable:
            self._notes.layout(unable)
            return None, UNABLE_S
        async with self._context.room:
            failpoint("lease.before_take")
            self._may_be_ours = True
            recreate = self._context.settings.recreate_groups
            lease = self._lease
            taken = await lease.take(holder, recreate=recreate, token=self._token)
            failpoint("lease.after_take")
        self.has_answer, self._may_be_ours, self._token = True, False, 0
        self._notes.worked(TAKE)
        if not taken.token:
            self._holder = ""  # a call of a term that is over must not pass for one of the next
            return None, min(taken.left_ms / 1000, self._tick_s) + random.uniform(0.001, EXPIRY_JITTER_S)
        self._took(taken)
        if lease is not self._lease:  # a reload came meanwhile: the settings that were written are the former ones
            self._token, self._may_be_ours = taken.token, True
            return None, 0
        return Term(holder, taken.token), 0

    def _took(self, taken: Taken) -> None:
        self.terms += 1
        self._notes.took(taken)
        logger.log(self._level, "lease taken: %s", fields(group=self.group.keys.pair, token=taken.token))
        self._context.callbacks.report(
            "lease_taken", stream=self.group.stream, group=self.group.group, token=taken.token
        )

    @property
    def _level(self) -> int:
        return logging.INFO if self._context.watched <= FEW_GROUPS else logging.DEBUG

    # ---- holding

    async def _hold(self, term: Term) -> EndOfTerm:
        """Have the group served until the term ends. Return why it ended."""
        ended: list[EndOfTerm] = []
        try:
            with anyio.CancelScope() as scope:

                def end(reason: EndOfTerm) -> None:
                    ended.append(reason)
                    scope.cancel()

                self._end = end
                self._watch = GroupWatch(self._context, self._lease, term, end, self._notes, self._verdict)
                self._context.changed()
                self.rerank()  # the order may have changed while the lease was taken
                await self._watch.run()
        except* Exception:
            logger.exception("serving the group failed: %s", fields(group=self.group.keys.pair, token=term.token))
            ended.append(EndOfTerm.FAILED)
        finally:
            self._end = self._watch = None
            reason = ended[0] if ended else EndOfTerm.STOPPED
            with anyio.CancelScope(shield=True):
                await self._leave(term, reason)
        return reason

    async def _leave(self, term: Term, reason: EndOfTerm) -> None:
        """Hand the lease to the next replica in the order, in bounded time. Otherwise it expires.

        The lease of a group that is not watched any more is only freed, because no other replica may want it.
        """
        self._context.changed()
        if reason is EndOfTerm.RELOADED:
            self._holder, self._token, self._may_be_ours = term.holder, term.token, bool(term.holder)
            return
        if not term.holder:
            return
        logger.log(self._level, "lease left: %s", fields(group=self.group.keys.pair, token=term.token, reason=reason))
        self._context.callbacks.report(
            "lease_left", stream=self.group.stream, group=self.group.group, token=term.token, reason=str(reason)
        )
        if reason is EndOfTerm.NOT_OURS:
            return
        others = [] if self._scope.cancel_called else self._order
        to = next((one for one in others if one != self._context.replica_id), "")
        with anyio.move_on_after(LEAVE_S), suppress(RedisError, OSError):
            async with self._context.room:  # so leases are not handed over faster than the others take them
                if await self._lease.hand(term.holder, to, reason) and to:
                    await self._until_taken()
        self._look_at_s, self._was_free = anyio.current_time() + OFFER_MS / 1000 + random.uniform(0.02, 0.2), True

    async def _until_taken(self) -> None:
        pause_s = 0.002
        with anyio.move_on_after(TAKEN_S) as patience:
            while (await self._lease.held_by()).startswith("offer:"):
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)
        if patience.cancelled_caught:
            self._keeps_until_s = anyio.current_time() + KEEPS * self._tick_s

    # ---- status

    @property
    def error(self) -> str:
        """The current failures with their causes, '' if everything works. For any thread."""
        return self._notes.tally.error

    @property
    def is_held(self) -> bool:
        """Tell whether this replica believes that it holds the lease. Each write asks Redis."""
        return self._watch is not None and not self._context.settings.observe

    def report(self) -> GroupReport | None:
        """Return a report while the group is served or observed, and while it cannot be."""
        watch, tally = self._watch, self._notes.tally
        if watch:
            return watch.report()
        return settings_report(self.group, tally) if tally.error or tally.refusal else None
