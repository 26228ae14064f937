"""The limit on recoveries per second, under a virtual clock."""

from typing import Any

import anyio
import pytest

from reaper.recovery.rate import RateLimit
from tests.support.virtual_time import VIRTUAL_TIME
from workers.runtime.clock import monotonic_ms

pytestmark = pytest.mark.anyio

BATCH = 256


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", VIRTUAL_TIME


async def sleep_until(instant_ms: int) -> None:
    await anyio.sleep_until(instant_ms / 1000)


async def recover_for(seconds: float, rate: RateLimit) -> list[int]:
    """Recover as fast as the limit allows; return the size of each batch."""
    batches: list[int] = []
    ends_ms = monotonic_ms() + round(seconds * 1000)
    while True:
        await sleep_until(rate.ready_at_ms(monotonic_ms()))
        if monotonic_ms() > ends_ms:
            return batches
        batches.append(rate.most(BATCH, monotonic_ms()))
        rate.spend(batches[-1])


async def test_no_limit_lets_whole_batches_through_at_once() -> None:
    rate = RateLimit(0)
    rate.spend(1_000_000)
    assert (rate.most(BATCH, 7_000), rate.ready_at_ms(7_000)) == (BATCH, 7_000)


async def test_the_first_second_worth_of_recoveries_may_go_at_once() -> None:
    rate = RateLimit(100)
    assert (rate.ready_at_ms(monotonic_ms()), rate.most(BATCH, monotonic_ms())) == (monotonic_ms(), 100)


async def test_a_batch_is_never_larger_than_asked_for() -> None:
    assert RateLimit(1_000).most(BATCH, 0) == BATCH


async def test_over_a_minute_the_rate_is_kept() -> None:
    batches = await recover_for(60, RateLimit(50))
    assert sum(batches) == pytest.approx(50 + 50 * 60, abs=2)  # a bucket of one second, and the refill meanwhile


async def test_a_rate_below_one_a_second_recovers_singly_at_its_pace() -> None:
    batches = await recover_for(60, RateLimit(0.2))
    assert set(batches) == {1}
    assert len(batches) == pytest.approx(0.2 * 60, abs=1)


async def test_an_idle_hour_is_not_saved_up() -> None:
    rate = RateLimit(10)
    rate.spend(rate.most(BATCH, monotonic_ms()))
    await anyio.sleep(3_600)
    assert rate.most(BATCH, monotonic_ms()) == 10


async def test_an_overspent_call_is_paid_back_by_the_next() -> None:
    rate = RateLimit(10)
    rate.most(BATCH, monotonic_ms())
    rate.spend(30)  # 20 too many
    ready_at_ms = rate.ready_at_ms(monotonic_ms())
    assert ready_at_ms == pytest.approx(monotonic_ms() + 2_100, abs=2)
    await sleep_until(ready_at_ms)
    assert rate.ready_at_ms(monotonic_ms()) <= monotonic_ms()


async def test_what_a_call_did_not_recover_can_be_given_back() -> None:
    rate = RateLimit(10)
    rate.spend(rate.most(BATCH, monotonic_ms()))
    rate.spend(-10)  # everything had been settled meanwhile
    assert (rate.ready_at_ms(monotonic_ms()), rate.most(BATCH, monotonic_ms())) == (monotonic_ms(), 10)


async def test_what_is_given_back_late_is_no_more_than_a_second_worth() -> None:
    rate = RateLimit(10)
    rate.spend(rate.most(BATCH, monotonic_ms()))
    await anyio.sleep(60)
    rate.spend(-10)
    assert rate.most(BATCH, monotonic_ms()) == 10
