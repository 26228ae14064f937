"""The upkeep of a whole group, its times, and that only its two authorities may do it."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.scripts.scene import HOLDER, Scene
from tests.support.servers import RedisServer
from tests.support.virtual_time import VIRTUAL_TIME
from tests.support.waiting import wait_until
from tests.workers.scene import accept, make_worker, running
from workers.embedded import upkeep
from workers.embedded.upkeep import LATEST_LOOK_S, Upkeep
from workers.protocol.calls.declined import Declined, DeclineReason
from workers.protocol.calls.group_moves import Authority, CleanupResult, DueMoves, GroupMoves
from workers.upkeep.cleanup import GroupCleanup
from workers.upkeep.pace import RELEASE_POLL_S, MovePace

pytestmark = pytest.mark.anyio

FENCED = Declined(DeclineReason.FENCED, HOLDER)
QUICK_S, SLOW_S = RELEASE_POLL_S
NOTHING = DueMoves()
ONE_OUT = DueMoves(quarantined=3, out=1)
ONE_RELEASED = DueMoves(quarantined=2, out=1, released=[b"job", b"1-0"])
ONE_SETTLED = DueMoves(quarantined=1, out=1, settled=1)


class Answers:
    """A call that answers what it is given, the last for ever, and notes when it was made."""

    def __init__(self, answers: Iterable[DueMoves | Declined | Exception]) -> None:
        self.made_at: list[float] = []
        self._answers: Iterator[DueMoves | Declined | Exception] = iter(answers)
        self._last: DueMoves | Declined | Exception | None = None

    async def move_due(self, _client: None) -> "DueMoves | Declined":
        self.made_at.append(anyio.current_time())
        self._last = next(self._answers, self._last)
        assert self._last is not None
        if isinstance(self._last, Exception):
            raise self._last
        return self._last

    @property
    def pauses(self) -> list[float]:
        """Time between the calls."""
        return [round(later - earlier, 4) for earlier, later in zip(self.made_at, self.made_at[1:], strict=False)]


class Silent:
    """Receives reports."""

    def works(self, _part: str) -> None:
        """Do nothing."""

    def recovered(self, _job: str, **_facts: str) -> None:
        """Do nothing."""


def upkeep_of(*answers: DueMoves | Declined | Exception) -> tuple[Upkeep, Answers]:
    calls = Answers(answers)
    one: Any = object.__new__(Upkeep)
    one._moves, one._commands, one._reporter, one._hint, one._pace = calls, None, Silent(), anyio.Event(), MovePace()
    return one, calls


@pytest.fixture
def evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause is random."""
    monkeypatch.setattr(upkeep, "JITTER_S", 0.0)


virtual = pytest.mark.parametrize("anyio_backend", [("asyncio", VIRTUAL_TIME)], ids=["virtual time"])


# ---- when jobs are moved


@virtual
@pytest.mark.usefixtures("evenly")
async def test_the_next_call_comes_when_a_job_is_due_and_else_now_and_then() -> None:
    one, calls = upkeep_of(*(DueMoves(due_ms) for due_ms in (0, 1_200, 60_000, -1, -1)))
    for _ in range(5):
        await one._move_due()
    assert calls.pauses == [0, 1.2, LATEST_LOOK_S, LATEST_LOOK_S]


@virtual
@pytest.mark.usefixtures("evenly")
async def test_a_quarantined_job_that_runs_for_long_is_looked_at_seldom_and_one_that_settles_brings_haste() -> None:
    one, calls = upkeep_of(ONE_RELEASED, *[ONE_OUT] * 10, ONE_SETTLED, ONE_OUT, ONE_OUT, NOTHING, ONE_OUT, NOTHING)
    for _ in range(17):
        await one._move_due()
    growing = [round(min(QUICK_S * 1.5**n, SLOW_S), 4) for n in range(11)]
    later = round(QUICK_S * 1.5, 4)
    assert calls.pauses == [*growing, QUICK_S, later, round(QUICK_S * 2.25, 4), LATEST_LOOK_S, later]


@virtual
async def test_a_job_that_is_scheduled_or_quarantined_meanwhile_is_looked_at_at_once() -> None:
    one, calls = upkeep_of(NOTHING)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one._move_due)
        await anyio.sleep(0.5)
        one.wake()
    await one._move_due()
    assert calls.pauses == [0.5]


@virtual
@pytest.mark.parametrize("trouble", [FENCED, RedisConnectionError("gone")], ids=["a declined call", "an error"])
async def test_after_trouble_the_next_step_calls_at_once(trouble: Declined | Exception) -> None:
    one, calls = upkeep_of(trouble, NOTHING)
    met: object = None
    try:
        met = await one._move_due()
    except RedisConnectionError as error:
        met = error
    assert met == trouble
    assert await one._move_due() is None
    assert calls.pauses == [0]


@virtual
async def test_many_workers_of_a_group_do_not_call_in_step() -> None:
    one, calls = upkeep_of(ONE_SETTLED)
    for _ in range(50):
        await one._move_due()
    assert len(set(calls.pauses)) > 10
    assert QUICK_S <= min(calls.pauses) <= max(calls.pauses) <= QUICK_S * 1.5


async def test_a_worker_with_nothing_to_recover_looks_about_once_in_a_visibility_timeout(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, recover_page = 0, GroupMoves.recover_page

    async def counted(*words: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await recover_page(*words, **more)

    monkeypatch.setattr(GroupMoves, "recover_page", counted)
    async with running(make_worker(server.url, accept, recovery="embedded", visibility_timeout=0.2)):
        began = anyio.current_time()
        await wait_until(lambda: looks >= 4, "it has looked four times")
        # A busy machine makes it look less often, never more.
        assert anyio.current_time() - began > 3 * 0.2 * 0.9


# ---- who may


@pytest.fixture
async def scene(client: Redis) -> Scene:
    prepared = Scene(client)
    await prepared.prepare()
    return prepared


either = pytest.mark.parametrize("holder", [HOLDER, ""], ids=["a holder", "embedded workers"])


def moves_of(scene: Scene, holder: str, journal_limit: int = 1_000) -> GroupMoves:
    return GroupMoves(scene.keys, journal_limit, Authority(holder, 7))


async def give_to(scene: Scene, holder: str) -> None:
    """Let ``holder`` look after the group. The scene's lease is the holder's."""
    await scene.set_settings(policy="stream", visibility_ms=30_000, max_deliveries=3)
    if not holder:
        await scene.client.delete(scene.keys.lease)
        await scene.set_settings(recovery="embedded")


@either
async def test_whoever_may_keeps_house(scene: Scene, holder: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    last = await scene.stalled()
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    await give_to(scene, holder)
    await scene.beats()
    began = await scene.now_ms()
    while await scene.now_ms() < began + 3:
        pass
    kept = await GroupCleanup(scene.client, moves_of(scene, holder)).tidy(timedelta(milliseconds=1))
    assert kept == CleanupResult([b"silent"], [])
    assert await scene.client.hget(scene.keys.settings, "last_id") == last.encode()
    assert caplog.messages == ["deleted silent consumers: group=orders/billing consumers=1"]


async def test_a_destroyed_group_is_noticed_also_where_another_caller_found_it_first(scene: Scene) -> None:
    await give_to(scene, HOLDER)
    one, another = (GroupCleanup(scene.client, moves_of(scene, HOLDER)) for _ in range(2))
    await one.tidy(None)
    await another.tidy(None)
    await scene.client.xgroup_delconsumer("orders", "billing", "marked-by-reaper")  # a group made anew lacks it
    await another.tidy(None)
    await one.tidy(None)
    assert (one.is_remade, another.is_remade) == (True, True)
    await one.tidy(None)
    assert not one.is_remade


@pytest.mark.parametrize("holder", ["alice.0@10000", ""], ids=["an earlier holder", "embedded workers"])
async def test_nobody_else_may(scene: Scene, holder: str) -> None:
    """The holder in term 7 looks after the group."""
    await scene.recover(await scene.stalled("n", 1, times=2))
    await scene.enqueue(("job-1", 60_000, "n", 1))
    await scene.make_due(scene.keys.stream_schedule)
    before = await scene.state()
    client, keys, moves = scene.client, scene.keys, moves_of(scene, holder, journal_limit=0)
    declined = [await moves.move_due(client), await GroupCleanup(client, moves).tidy(None)]
    assert declined == [FENCED] * 2
    await client.hdel(keys.settings, "fenced")  # it is counted
    assert await scene.state() == before
