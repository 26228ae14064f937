"""One group in one replica, which waits for the lease, holds it, leaves it, and waits again."""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import anyio
from redis.exceptions import RedisError

from reaper.context import ReplicaContext
from reaper.failpoints import failpoint
from reaper.lease import OFFER, OFFER_MS, EndOfTerm, GroupLease
from reaper.reasons import FEW_GROUPS
from reaper.recovery.group_watch import GroupWatch
from reaper.recovery.notes import GroupNotes
from reaper.recovery.observing import ObserverLease
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from reaper.sharing.ranking import ranked
from reaper.tasks import Work
from reaper.wheel import SLOT_S, TICK_SLOTS, Alarm
from workers.protocol.calls.group_moves import Authority
from workers.protocol.log_fields import fields
from workers.protocol.messages import Redelivery
from workers.protocol.server import knows_claim
from workers.runtime.clock import monotonic

logger = logging.getLogger(__name__)

TAKE = "take the lease"
RETRY_S = (0.1, 0.5)
"""Shortest and longest pause after an attempt whose outcome is unknown, and after the loss of the lease."""
UNABLE_S = 1.0
"""Pause before the next attempt on a server that does not support the policy of the group."""
EXPIRY_JITTER_S = 0.05
"""Replicas that wait for the same expiry try at different times within this."""
LOOKS = 9
"""Ticks after which the second replica in the order reads the lease. The third one reads it half as often."""
LEAVE_S = 10.0
"""How long a replica tries to hand a lease over."""
KEEPS = 30
"""Ticks for which a replica keeps a lease that was not taken in time by the first one. Then it offers it again."""
FAILURE_PAUSE_S = (0.5, 1.0)


class Tenure:
    """One group. It has a task only while it takes or leaves the lease."""

    def __init__(self, context: ReplicaContext, group: WatchedGroup) -> None:
        self._context = context
        self._ranked: tuple[Sequence[str], list[str]] = ((), [])
        """The replicas that may hold the group, and their order."""
        self.group = group
        self._lease = (ObserverLease if context.settings.observe else GroupLease)(context, group)
        self._tick_s = context.settings.tick_of(group).total_seconds()
        self._notes = GroupNotes(group, context.changed, context.logged_groups)
        self._alarm = Alarm(self.go_on)
        self._is_busy = self._is_woken = False
        """Whether work or a call is under way, and whether `go_on` was called meanwhile."""
        self._was_free = False
        """The lease was free, or offered to another replica, when it was last read."""
        self._look_at_s = self._keeps_until_s = 0.0
        self._holder = ""
        """Value of the lease in the next attempt. Empty = the attempt draws a new one."""
        self._may_be_ours = False
        """The lease may have that value, because the last attempt had no answer."""
        self._watch: GroupWatch | None = None
        self._left: anyio.Event | None = None
        """Set when the group was left for good. None before `stop`."""
        self._is_watched = True
        self.has_answer = False
        """Redis has returned the holder of the lease."""

    # ---- from outside

    def begin(self) -> None:
        """Serve the group in each term of this replica, until `stop`. Errors of Redis do not end it."""
        self._context.notices.add(self._notice, [self._lease.keys.lease])
        self.go_on()

    def stop(self, *, is_watched: bool) -> anyio.Event:
        """Leave the group for good, and return an event for the end. Another replica gets it if it ``is_watched``."""
        self._left, self._is_watched = anyio.Event(), is_watched
        self._context.logged_groups.discard(self.group.keys.name)
        self._context.notices.remove(self._notice, [self._lease.keys.lease])
        self._alarm.cancel()
        if self._watch:
            self._watch.end(EndOfTerm.STOPPED)
        elif not self._is_busy:
            self._wait(0)
        return self._left

    def _notice(self) -> None:
        self._look_at_s = 0.0
        self.go_on()

    @property
    def _order(self) -> list[str]:
        """The replicas that may hold the group, in their order."""
        able = self._context.able or ()
        if able is not self._ranked[0]:
            self._ranked = able, ranked(able, self.group.keys.name)
        return self._ranked[1]

    @property
    def _rank(self) -> int | None:
        """Number of replicas that come before this one. None = it may not hold the group, or the order is unknown."""
        order, me = self._order, self._context.replica_id
        return order.index(me) if me in order else None

    # ---- waiting

    def go_on(self) -> None:
        """Take the lease, read it or hand it over, if it is time."""
        if self._left:
            return
        if self._is_busy:
            self._is_woken = True
        elif self._watch:
            self._hand_over_if_due(self._watch)
        else:
            self._alarm.cancel()
            self._take_turn()

    def _wait(self, pause_s: float, slot_s: float = SLOT_S) -> None:
        """Go on after a pause, a notice or a new order."""
        self._is_busy = False
        if self._left is None:
            pause_s = 0 if self._is_woken else pause_s
            self._is_woken = False
            self._context.wheel.put(self._alarm, pause_s, slot_s=slot_s if pause_s else 0)
        elif self._may_be_ours:  # an attempt without an answer may have won
            self._may_be_ours = False
            self._start(partial(self._leave, Authority(self._holder), EndOfTerm.STOPPED))
        else:
            self._left.set()

    def _start(self, work: Work) -> None:
        """Start ``work`` in a task, in its turn."""
        self._is_busy = True
        self._context.tasks.start_in_turn(work)

    def _hand_over_if_due(self, watch: GroupWatch) -> None:
        left_s, rank = self._keeps_until_s - monotonic(), self._rank
        if rank == 0 or not self._order:
            return
        if rank is None or left_s <= 0:  # a replica without a rank was drained
            watch.end(EndOfTerm.HANDED_OVER)
        else:
            self._wait(left_s)

    def _take_turn(self) -> None:
        """Take the lease if this replica comes first. Otherwise read it now and then."""
        rank, now = self._rank, monotonic()
        if rank == 0 or self._may_be_ours:
            self._start(self._attempt)
        elif rank is not None and self._look_at_s <= now:
            self._is_busy = True
            self._lease.look(self._looked)
        elif rank is not None:
            self._wait(self._look_at_s - now, self._tick_s / TICK_SLOTS)

    def _looked(self, found: str | Exception) -> None:
        """Take the lease if it was offered to this replica, or stays free. Otherwise leave it to other replicas."""
        if isinstance(found, Exception):
            self._notes.failed(TAKE, found)
            self._wait(random.uniform(*RETRY_S))
            return
        now = monotonic()
        self.has_answer = True
        self._notes.worked(TAKE)
        if found == OFFER + self._context.replica_id:
            self._keeps_until_s = now + OFFER_MS / 1000  # a replica that leaves may still come first for a moment
        elif not found and self._was_free:
            self._keeps_until_s = now + KEEPS * self._tick_s
        else:
            self._was_free = not found or found.startswith(OFFER)
            pause_s = self._leave_it_s(found)
            self._look_at_s = now if self._is_woken else now + pause_s
            self._wait(pause_s, self._tick_s / TICK_SLOTS)
            return
        self._start(self._attempt)

    def _leave_it_s(self, found: str) -> float:
        """Return the seconds until this replica reads a lease with the value ``found`` again."""
        if found.startswith(OFFER):
            return OFFER_MS / 1000 + random.uniform(0.02, 0.2)
        if not found:
            return self._tick_s * random.uniform(1, 2)
        return self._tick_s * LOOKS * (self._rank or 1) * random.uniform(0.5, 1)

    # ---- taking

    async def _attempt(self) -> None:
        """Try to take the lease."""
        self._was_free, self._look_at_s = False, 0.0
        self._holder = self._holder or self._lease.new_holder()
        term: Authority | None = None
        wait_s = random.uniform(*RETRY_S)
        try:
            if self._left is None:
                term, wait_s = await self._try(self._holder)
        except (RedisError, OSError) as error:
            # The attempt may have succeeded. So the next one has the same value, which counts as a success.
            self._notes.failed(TAKE, error)
        if term:
            self._holder = ""
            self._hold(term)
        else:
            self._wait(wait_s)

    async def _try(self, holder: str) -> tuple[Authority | None, float]:
        """Return the term, or None and the seconds until the next attempt."""
        is_in_place, probe = self.group.redelivery is Redelivery.IN_PLACE, self.group.keys.quarantine
        if is_in_place and not await knows_claim(self._context.client, probe):
            self._notes.layout("no_claim")
            return None, UNABLE_S
        failpoint("lease.before_take")
        self._may_be_ours = True
        taken = await self._lease.take(holder)
        failpoint("lease.after_take")
        self.has_answer, self._may_be_ours = True, False
        self._notes.worked(TAKE)
        if taken.holder != holder:
            self._holder = ""  # a late call of this attempt must not succeed in a later term
            return None, taken.left_ms / 1000 + random.uniform(0.001, EXPIRY_JITTER_S)
        self._notes.took(taken)
        return Authority(holder, taken.token), 0

    @property
    def _level(self) -> int:
        """The log level for changes of the lease. An observer has no lease, so it logs none."""
        if self._context.settings.observe:
            return logging.NOTSET
        return logging.INFO if self._context.watched <= FEW_GROUPS else logging.DEBUG

    # ---- holding

    def _hold(self, term: Authority) -> None:
        """Serve the group until the term ends."""
        logger.log(self._level, "lease taken: %s", fields(group=self.group.keys.name, token=term.token))
        self._context.terms += bool(term.token)
        self._is_busy = self._is_woken = False
        ended = partial(self._ended, term)
        self._watch = watch = GroupWatch(self._context, self._lease, term, ended, self._notes)
        self._context.changed()
        watch.begin()
        if self._left:
            watch.end(EndOfTerm.STOPPED)
        else:
            self.go_on()  # the order may have changed while the lease was taken

    def _ended(self, term: Authority, reason: EndOfTerm) -> None:
        """Leave the lease after a term, and wait for the next one."""
        self._watch = None
        self._alarm.cancel()
        self._context.changed()
        self._notes = GroupNotes(self.group, self._context.changed, self._context.logged_groups)
        logger.log(self._level, "lease left: %s", fields(group=self.group.keys.name, token=term.token, reason=reason))
        if reason is EndOfTerm.NOT_OURS:
            self._wait(random.uniform(*RETRY_S))
        else:
            self._start(partial(self._leave, term, reason))

    async def _leave(self, term: Authority, reason: EndOfTerm) -> None:
        """Hand the lease to the next replica in the order, in bounded time. Otherwise it expires.

        The lease of a group that is not watched any more is only freed.
        """
        heirs = self._order if self._is_watched else []
        to = next((one for one in heirs if one != self._context.replica_id), "")
        with anyio.move_on_after(LEAVE_S), suppress(RedisError, OSError):
            await self._lease.hand(term.holder, to, reason)
        if reason is EndOfTerm.FAILED:
            await anyio.sleep(random.uniform(*FAILURE_PAUSE_S))  # after `hand`, because its notice would end the pause
        self._wait(0)

    # ---- status

    @property
    def error(self) -> str:
        """The current failures with their causes. Empty if everything works. For any thread."""
        return self._notes.report.error

    @property
    def is_held(self) -> bool:
        """Tell whether this replica believes that it holds the lease. Redis checks it at each write."""
        return self._watch is not None and not self._context.settings.observe

    def report(self) -> GroupReport | None:
        """Return a report while the group is served or observed, and while it cannot be."""
        if self._watch:
            return self._watch.report()
        report = self._notes.report
        return report if report.error or report.disabled else None
