"""One group, as one replica sees it: under a virtual clock, with a lease that is played."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from reaper.context import ReplicaContext
from reaper.lease import OFFER_MS, EndOfTerm, GroupLease, Taken
from reaper.recovery.group_watch import GroupWatch
from reaper.settings import ReaperSettings
from reaper.sharing.ranking import ranked
from reaper.sharing.tenure import KEEPS, LOOKS, Tenure
from reaper.sharing.tenures import Tenures
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = pytest.mark.anyio

PAIR = "orders/billing"
FIRST, SECOND, THIRD = ranked(["a", "b", "c"], PAIR)
TTL_S = 7.5
TICK_S = TTL_S / 3
NO_CLIENT = cast("Any", None)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", VIRTUAL_TIME


class Wakes:
    """Notices, which come when the test says so."""

    def __init__(self) -> None:
        self.notice: Callable[[], None] = lambda: None

    def add(self, wake: Callable[[], None], _channels: object) -> None:
        """Keep ``wake``."""
        self.notice = wake

    def remove(self, _wake: object, _channels: object) -> None:
        """Wake it no more."""

    async def run(self) -> None:
        """Listen."""


@dataclass
class Lease:
    """The lease in Redis, and the calls that were made."""

    value: str = ""
    expires_s: float = float("inf")
    token: int = 0
    calls: list[tuple[float, str, str]] = field(default_factory=list)
    """When, what, and with which argument."""
    fails: int = 0
    """So many attempts reach Redis, and their replies are lost."""
    reply_s: float = 0
    """The reply to an attempt takes so long."""

    def _note(self, what: str, word: str) -> None:
        self.calls.append((anyio.current_time(), what, word))
        if anyio.current_time() >= self.expires_s:
            self.value, self.expires_s = "", float("inf")

    def times(self, what: str) -> list[float]:
        """Return when ``what`` was called."""
        return [at for at, call, _ in self.calls if call == what]

    async def take(self, lease: GroupLease, holder: str, *, token: int = 0) -> Taken:
        """Do what ``lease_take.lua`` does."""
        self._note("take", holder)
        if token and self.value != holder:
            return Taken(self.value)
        if self.value not in ("", holder, f"offer:{lease.replica_id}"):
            return Taken(self.value, left_ms=round((self.expires_s - anyio.current_time()) * 1000))
        self.token += self.value != holder
        self.value, self.expires_s = holder, float("inf")
        if self.fails:
            self.fails -= 1
            raise RedisConnectionError("the reply is lost")
        await anyio.sleep(self.reply_s)
        return Taken(holder, self.token)

    async def hand(self, _lease: GroupLease, holder: str, to: str, why: str) -> bool:
        """Do what ``lease_hand.lua`` does."""
        self._note("hand", f"{to} {why}")
        if self.value != holder:
            return False
        self.value = f"offer:{to}" if to else ""
        self.expires_s = anyio.current_time() + OFFER_MS / 1000
        return True

    def look(self, _lease: GroupLease, answered: Callable[[str], None]) -> None:
        """Return the value later."""
        self._note("look", "")
        asyncio.get_running_loop().call_soon(answered, self.value)


@dataclass
class Place:
    """A replica named ``me``, and its group."""

    lease: Lease
    me: str
    able: tuple[str, ...] | None
    wakes: Wakes = field(default_factory=Wakes)

    def __post_init__(self) -> None:
        settings = ReaperSettings(groups=PAIR)
        clients = NO_CLIENT, NO_CLIENT, NO_CLIENT, NO_CLIENT
        self.context = ReplicaContext(self.me, settings, *clients, cast("Any", self.wakes), able=self.able)
        [self.group] = settings.watched
        self.tenures = Tenures(self.context)

    @property
    def tenure(self) -> Tenure:
        """The one of the group."""
        return self.tenures._tenures[PAIR]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Tenure]:
        """Run the tenure until the block ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.tenures.run)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            yield self.tenure
            tasks.cancel_scope.cancel()

    def reranked(self, *able: str) -> None:
        """Let others be able to hold groups."""
        self.context.able = able
        self.tenure.go_on()


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> Lease:
    played = Lease()
    for name in ("take", "hand", "look"):
        call = getattr(played, name)
        monkeypatch.setattr(GroupLease, name, lambda lease, *words, call=call, **more: call(lease, *words, **more))
    return played


@pytest.fixture(autouse=True)
def _served_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupWatch, "begin", lambda _watch: None)
    monkeypatch.setattr(GroupWatch, "end", lambda watch, reason: watch._ended(reason))


async def test_it_does_nothing_while_it_does_not_know_the_others(lease: Lease) -> None:
    place = Place(lease, FIRST, None)
    async with place.running():
        await anyio.sleep(100)
        assert lease.calls == []
        place.reranked(FIRST, SECOND)
        await anyio.sleep(0.01)
        assert place.tenure.is_held


async def test_the_second_in_the_order_leaves_the_lease_to_the_first_for_some_time(lease: Lease) -> None:
    place = Place(lease, SECOND, (FIRST, SECOND))
    async with place.running():
        await anyio.sleep(TICK_S * 0.9)
        assert (lease.times("take"), place.tenure.is_held) == ([], False)
        await anyio.sleep(2 * TICK_S)
        assert place.tenure.is_held, "the first one does not take it"


async def test_who_is_not_the_first_looks_seldom_while_somebody_holds_the_lease(lease: Lease) -> None:
    lease.value = "somebody"
    place = Place(lease, THIRD, (FIRST, SECOND, THIRD))
    async with place.running():
        await anyio.sleep(100 * TICK_S)
    looks = lease.times("look")
    assert lease.times("take") == []
    assert 100 / (2 * LOOKS) <= len(looks) <= 100 / LOOKS + 1


async def test_the_first_one_takes_the_lease_of_a_dead_replica_when_it_expires(lease: Lease) -> None:
    place = Place(lease, FIRST, (FIRST,))
    began = anyio.current_time()
    lease.value, lease.expires_s = "dead", began + TTL_S
    async with place.running():
        await anyio.sleep(TTL_S - 0.01)
        assert lease.value == "dead"
        await anyio.sleep(0.1)
        assert place.tenure.is_held
        assert len(lease.times("take")) <= 5, "once a tick, and at the end"


async def test_after_a_lost_reply_it_asks_again_as_the_same_holder(lease: Lease) -> None:
    lease.fails = 2
    async with Place(lease, FIRST, (FIRST,)).running() as tenure:
        await anyio.sleep(2)
        assert (tenure.is_held, lease.token, tenure._context.terms) == (True, 1, 1)
    assert len({holder for _, call, holder in lease.calls if call == "take"}) == 1


async def test_each_term_has_a_holder_of_its_own(lease: Lease) -> None:
    place = Place(lease, FIRST, (FIRST,))
    holders = []
    async with place.running() as tenure:
        for _ in range(3):
            await anyio.sleep(1)
            holders.append(lease.value)
            lease.value = ""  # it was evicted
            assert tenure._watch is not None
            tenure._watch.end(EndOfTerm.NOT_OURS)
        assert len(set(holders)) == 3
        assert lease.times("hand") == [], "there was nothing to hand over"


async def test_a_lease_that_is_evicted_again_and_again_is_not_taken_without_a_pause(lease: Lease) -> None:
    async with Place(lease, FIRST, (FIRST,)).running() as tenure, anyio.create_task_group() as tasks:

        async def evict() -> None:
            while True:
                if tenure._watch:
                    lease.value = ""
                    tenure._watch.end(EndOfTerm.NOT_OURS)
                await anyio.sleep(0.01)

        tasks.start_soon(evict)
        await anyio.sleep(10)
        tasks.cancel_scope.cancel()
    assert 10 < tenure._context.terms < 100


async def test_a_replica_that_comes_gets_the_groups_that_are_its(lease: Lease) -> None:
    place = Place(lease, SECOND, (SECOND,))
    async with place.running() as tenure:
        await anyio.sleep(1)
        assert tenure.is_held
        place.reranked(FIRST, SECOND)
        await anyio.sleep(0.01)
        assert (lease.value, tenure.is_held) == (f"offer:{FIRST}", False)


async def test_a_lease_that_was_offered_in_vain_is_taken_back_and_kept_for_a_while(lease: Lease) -> None:
    place = Place(lease, SECOND, (SECOND,))
    async with place.running() as tenure:
        await anyio.sleep(1)
        place.reranked(FIRST, SECOND)
        await anyio.sleep(OFFER_MS / 1000 + 3 * TICK_S)
        assert tenure.is_held
        hands = len(lease.times("hand"))
        for _ in range(KEEPS - 10):
            tenure.go_on()
            await anyio.sleep(TICK_S)
        assert len(lease.times("hand")) == hands
        await anyio.sleep(20 * TICK_S)
        tenure.go_on()
        await anyio.sleep(0.01)
        assert len(lease.times("hand")) == hands + 1


async def test_a_drained_replica_hands_over_also_what_it_keeps(lease: Lease) -> None:
    place = Place(lease, SECOND, (SECOND,))
    async with place.running() as tenure:
        await anyio.sleep(1)
        place.reranked(FIRST, SECOND)
        await anyio.sleep(OFFER_MS / 1000 + 3 * TICK_S)
        assert tenure.is_held
        place.reranked(FIRST)
        await anyio.sleep(0.01)
        assert (lease.value, tenure.is_held) == (f"offer:{FIRST}", False)


async def test_a_drained_replica_need_not_know_the_holders(lease: Lease) -> None:
    place = Place(lease, SECOND, (FIRST,))
    async with place.running() as tenure:
        await anyio.sleep(60)
        assert (lease.calls, tenure.has_answer, place.tenures.have_answers) == ([], False, True)


async def test_the_notice_of_its_own_offer_does_not_make_it_wait_longer_for_an_offer_in_vain(lease: Lease) -> None:
    place = Place(lease, SECOND, (SECOND,))
    async with place.running() as tenure:
        await anyio.sleep(1)
        place.reranked(FIRST, SECOND)
        await anyio.sleep(0.01)
        place.wakes.notice()
        await anyio.sleep(OFFER_MS / 1000 + 0.3)
        assert tenure.is_held


async def test_an_offer_is_taken_at_once_and_not_handed_back(lease: Lease) -> None:
    lease.value = f"offer:{SECOND}"
    place = Place(lease, SECOND, (FIRST, SECOND))  # the first one leaves, and is still registered
    async with place.running() as tenure:
        await anyio.lowlevel.checkpoint()
        place.wakes.notice()
        await anyio.sleep(0.01)
        assert tenure.is_held
        tenure.go_on()
        await anyio.sleep(1)
        assert tenure.is_held


async def test_an_order_that_changed_while_the_lease_was_taken_counts(lease: Lease) -> None:
    place = Place(lease, SECOND, (SECOND,))
    async with place.running() as tenure:
        await anyio.lowlevel.checkpoint()
        place.context.able = (FIRST, SECOND)  # without a notice
        await anyio.sleep(0.01)
        assert (lease.value, tenure.is_held) == (f"offer:{FIRST}", False)


@pytest.mark.parametrize("able", [(), (FIRST,)], ids=["nobody is able", "it is the only one"])
async def test_without_an_heir_it_keeps_the_lease(lease: Lease, able: tuple[str, ...]) -> None:
    place = Place(lease, FIRST, (FIRST,))
    async with place.running() as tenure:
        await anyio.sleep(1)
        place.reranked(*able)
        await anyio.sleep(60)
        assert (tenure.is_held, lease.times("hand")) == (True, [])


async def test_at_the_end_the_lease_goes_to_the_next_in_the_order(lease: Lease) -> None:
    async with Place(lease, FIRST, (FIRST, SECOND, THIRD)).running():
        await anyio.sleep(1)
    assert [word for _, call, word in lease.calls if call == "hand"] == [f"{SECOND} stopped"]


async def test_an_attempt_that_is_cut_off_leaves_no_lease_behind(lease: Lease) -> None:
    lease.fails = 1
    async with Place(lease, FIRST, (FIRST,)).running():
        await anyio.sleep(0.01)
        assert lease.value, "it has won, and does not know"
    assert lease.value == ""


async def test_an_error_that_nobody_expected_ends_the_term_and_another_begins(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = iter([True, False])

    def begin(watch: GroupWatch) -> None:
        if next(fails):
            watch.end(EndOfTerm.FAILED)

    monkeypatch.setattr(GroupWatch, "begin", begin)
    async with Place(lease, FIRST, (FIRST,)).running() as tenure:
        await anyio.sleep(3)
        assert (tenure.is_held, lease.token) == (True, 2)


@pytest.mark.parametrize("pair", [(FIRST,), (FIRST, SECOND)], ids=["alone", "with another one"])
async def test_a_group_that_fails_all_the_time_is_tried_about_once_a_second(
    lease: Lease, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, ...]
) -> None:
    places = [Place(lease, me, pair) for me in pair]
    hand = lease.hand

    async def hand_and_publish(*words: Any) -> bool:
        was_ours = await hand(*words)
        for place in places:
            place.wakes.notice()
        return was_ours

    monkeypatch.setattr(GroupLease, "hand", hand_and_publish)
    monkeypatch.setattr(GroupWatch, "begin", lambda watch: watch.end(EndOfTerm.FAILED))
    async with anyio.create_task_group() as tasks:
        for place in places:
            tasks.start_soon(place.tenures.run)
        await anyio.sleep(10)
        tasks.cancel_scope.cancel()
    assert 5 * len(pair) <= lease.token <= 20 * len(pair) + 1
