"""The upkeep of a whole group, its times, and that only its two authorities may do it."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.scripts.scene import HOLDER, Scene
from tests.support.virtual_time import VIRTUAL_TIME
from workers.protocol.calls import Journal
from workers.protocol.calls.group_moves import AGREEMENT, Authority, CleanupResult, DueMoves, GroupMoves
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.upkeep.cleanup import GroupCleanup
from workers.upkeep.quarantine import POLL_S, Quarantine
from workers.upkeep.schedules import LATEST_LOOK_S, Schedules

pytestmark = pytest.mark.anyio

OWNER = Authority(HOLDER, 7)
"""As the scene's lease has it."""
JOURNAL, NO_JOURNAL = Journal(1, 1_000), Journal(0, 1_000)
STALE = Refusal(RefusalKind.STALE, HOLDER)
QUICK_S, SLOW_S = POLL_S
NOTHING = DueMoves(quarantined=0, out=0, settled=0, jobs=())
ONE_OUT = DueMoves(quarantined=3, out=1, settled=0, jobs=())
ONE_RELEASED = DueMoves(quarantined=2, out=1, settled=0, jobs=((b"job", b"1-0"),))
ONE_SETTLED = DueMoves(quarantined=1, out=1, settled=1, jobs=())


class Answers:
    """A call that answers what it is given, the last for ever, and notes when it was made."""

    def __init__(self, answers: Iterable[DueMoves | Refusal | Exception]) -> None:
        self.made_at: list[float] = []
        self._answers: Iterator[DueMoves | Refusal | Exception] = iter(answers)
        self._last: DueMoves | Refusal | Exception | None = None

    async def __call__(self) -> "DueMoves | Refusal":
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


def quarantined_of(*answers: DueMoves | Refusal | Exception, jitter: float = 0.0) -> tuple[Quarantine, Answers]:
    call = Answers(answers)
    return Quarantine(call, lambda _: None, jitter=jitter), call


def schedules_of(*answers: DueMoves | Refusal | Exception) -> tuple[Schedules, Answers]:
    call = Answers(answers)
    return Schedules(call, lambda _: None, lambda: None), call


async def told_by(step: Callable[[], Awaitable[Refusal | None]]) -> Refusal | Exception | None:
    """Return the refusal of a step, or raise its error."""
    try:
        return await step()
    except RedisConnectionError as error:
        return error


def due_in(next_due_ms: int | None) -> DueMoves:
    return DueMoves(next_due_ms, held=0, why="", quarantined=0)


virtual = pytest.mark.parametrize("anyio_backend", [("asyncio", VIRTUAL_TIME)], ids=["virtual time"])


# ---- when quarantined jobs are looked at


@virtual
async def test_as_long_as_nobody_is_quarantined_nobody_looks() -> None:
    quarantined, call = quarantined_of(ONE_OUT)
    with anyio.move_on_after(3_600):
        await quarantined.step()
    assert call.made_at == []
    quarantined.wake()
    await quarantined.step()
    assert [round(at, 4) for at in call.made_at] == [3_600]


@virtual
async def test_a_long_one_is_looked_at_seldom_and_one_that_settles_brings_haste() -> None:
    quarantined, call = quarantined_of(ONE_RELEASED, *[ONE_OUT] * 10, ONE_SETTLED, ONE_OUT, ONE_OUT)
    quarantined.wake()
    for _ in range(14):
        await quarantined.step()
    growing = [round(min(QUICK_S * 1.5**n, SLOW_S), 4) for n in range(11)]
    assert call.pauses == [*growing, QUICK_S, round(QUICK_S * 1.5, 4)]


@virtual
async def test_one_that_is_quarantined_meanwhile_is_looked_at_at_once() -> None:
    quarantined, call = quarantined_of(ONE_OUT)
    quarantined.wake()
    for _ in range(20):
        await quarantined.step()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(quarantined.step)
        await anyio.sleep(SLOW_S / 10)
        quarantined.wake()
    await quarantined.step()
    assert call.pauses[-1] == round(SLOW_S / 10, 4)


@virtual
@pytest.mark.parametrize("trouble", [STALE, RedisConnectionError("gone")], ids=["a refusal", "an error"])
async def test_after_trouble_they_are_looked_at_without_anybody_saying_so(trouble: Refusal | Exception) -> None:
    quarantined, call = quarantined_of(trouble, NOTHING)
    quarantined.wake()
    assert await told_by(quarantined.step) == trouble
    assert await quarantined.step() is None
    assert call.pauses == [0]


@virtual
async def test_once_all_have_settled_nobody_looks_any_more() -> None:
    quarantined, call = quarantined_of(ONE_RELEASED, NOTHING)
    quarantined.wake()
    with anyio.move_on_after(3_600):
        while True:
            await quarantined.step()
    assert call.pauses == [QUICK_S]


@virtual
async def test_many_that_look_after_a_group_do_not_look_in_step() -> None:
    quarantined, call = quarantined_of(ONE_SETTLED, jitter=0.5)
    quarantined.wake()
    for _ in range(50):
        await quarantined.step()
    assert len(set(call.pauses)) > 10
    assert QUICK_S <= min(call.pauses) <= max(call.pauses) <= QUICK_S * 1.5


# ---- when schedules are looked at


@virtual
async def test_schedules_are_looked_at_when_something_is_due_and_else_now_and_then() -> None:
    schedules, call = schedules_of(due_in(0), due_in(1_200), due_in(60_000), due_in(None), due_in(None))
    for _ in range(5):
        await schedules.step()
    assert call.pauses == [0, 1.2, LATEST_LOOK_S, LATEST_LOOK_S]


@virtual
@pytest.mark.parametrize("trouble", [STALE, RedisConnectionError("gone")], ids=["a refusal", "an error"])
async def test_trouble_is_for_whoever_repeats_the_step(trouble: Refusal | Exception) -> None:
    schedules, call = schedules_of(trouble, due_in(None))
    assert await told_by(schedules.step) == trouble
    assert await schedules.step() is None
    assert call.pauses == [0]


@virtual
async def test_quarantined_jobs_that_a_look_meets_are_released() -> None:
    woken: list[float] = []
    call = Answers([due_in(1_000), replace(due_in(1_000), quarantined=2)])
    schedules = Schedules(call, lambda _: None, lambda: woken.append(len(call.made_at)))
    await schedules.step()
    await schedules.step()
    assert woken == [2]


# ---- who may


@pytest.fixture
async def scene(client: Redis) -> Scene:
    prepared = Scene(client)
    await prepared.prepare()
    return prepared


either = pytest.mark.parametrize("authority", [OWNER, AGREEMENT], ids=["a holder", "embedded workers"])


def moves_of(scene: Scene, authority: Authority, journal: Journal = JOURNAL) -> GroupMoves:
    return GroupMoves.of(scene.keys, journal, authority=authority)


async def give_to(scene: Scene, authority: Authority) -> None:
    """Let ``authority`` look after the group. The scene's lease is the holder's."""
    await scene.agree(policy="stream", visibility_ms=30_000, max_deliveries=3)
    if not authority.holder:
        await scene.client.delete(scene.keys.lease)
        await scene.agree(recovery="embedded")


@either
async def test_whoever_may_makes_ready_what_is_due(scene: Scene, authority: Authority) -> None:
    await scene.enqueue(("job-1", 60_000, "n", 1))
    await scene.make_due(scene.keys.stream_schedule)
    await give_to(scene, authority)
    moved = await moves_of(scene, authority).move_due(scene.client)
    assert moved == DueMoves(next_due_ms=None, held=0, why="", quarantined=0)
    assert await scene.client.xlen(scene.keys.stream) == 1


@either
async def test_whoever_may_lets_quarantined_jobs_out(scene: Scene, authority: Authority) -> None:
    quarantined = await scene.stalled("n", 1, times=2)
    await scene.recover(quarantined)
    await give_to(scene, authority)
    released = await moves_of(scene, authority).move_due(scene.client)
    assert isinstance(released, DueMoves)
    assert (released.quarantined, released.out, released.settled) == (0, 1, 0)
    assert [job_id for job_id, _ in released.jobs] == [quarantined.encode()]


@either
async def test_whoever_may_keeps_house(scene: Scene, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    last = await scene.stalled()
    await scene.client.xgroup_createconsumer("orders", "billing", "silent")
    await give_to(scene, authority)
    await scene.beats()
    began = await scene.now_ms()
    while await scene.now_ms() < began + 3:
        pass
    kept = await GroupCleanup(scene.client, moves_of(scene, authority), timedelta(milliseconds=1)).tidy()
    assert kept == CleanupResult((b"silent",), is_remade=False, groups_lost=0)
    assert await scene.client.hget(scene.keys.agreement, "last_id") == last.encode()
    assert caplog.messages == ["deleted silent consumers: group=orders/billing consumers=1"]


@pytest.mark.parametrize(
    "authority", [Authority("alice.0@10000", 6), AGREEMENT], ids=["an earlier holder", "embedded workers"]
)
async def test_nobody_else_may(scene: Scene, authority: Authority) -> None:
    """The holder in term 7 looks after the group."""
    await scene.recover(await scene.stalled("n", 1, times=2))
    await scene.enqueue(("job-1", 60_000, "n", 1))
    await scene.make_due(scene.keys.stream_schedule)
    before = await scene.state()
    client, keys, moves = scene.client, scene.keys, moves_of(scene, authority, NO_JOURNAL)
    refusals = [await moves.move_due(client), await GroupCleanup(client, moves, None).tidy()]
    assert refusals == [STALE] * 2
    await client.hdel(keys.agreement, "refused")  # it is counted
    assert await scene.state() == before
