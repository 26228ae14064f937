"""How long a leader trusts its lease: under a virtual clock, with a lease without Redis.

On a real clock, a machine that is busy for longer than the trust window would end the term as an outage does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from reaper.election.elector import Elector
from reaper.election.lease import Attempt, Renewal, Renewed
from tests.reaper.candidates import Candidate
from tests.support.paced import PacedSettings
from tests.support.virtual_time import VIRTUAL_TIME
from workers.runtime.clock import monotonic_ms

pytestmark = pytest.mark.anyio

TTL_S, TRUST_S, RENEW_S = 10, 7, 3
HOUR_S = 3_600


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", VIRTUAL_TIME


async def answers() -> None:
    """What Redis does as long as it is there: answer."""


async def refuses() -> None:
    """What is left of it where it is not."""
    raise RedisConnectionError("Connection refused")


async def hangs() -> None:
    """What it does where it is frozen."""
    await anyio.sleep_forever()


class World:
    """A lease, and all else that an elector asks Redis for. ``does`` is what each request meets first."""

    def __init__(self) -> None:
        self.does: Callable[[], Awaitable[None]] = answers
        self.free_at = 0.0
        """When the lease of whoever has it now runs out."""
        self.token = 0
        self.renewals = 0

    # ---- the lease

    async def acquire(self, holder: str) -> Attempt:
        await self.does()
        left_ms = round((self.free_at - anyio.current_time()) * 1000)
        if left_ms > 0:
            return Attempt(False, 0, "somebody", left_ms, monotonic_ms())
        self.token += 1
        return Attempt(True, self.token, holder, 0, monotonic_ms())

    async def renew(self, _holder: str) -> Renewed:
        self.renewals += 1
        await self.does()
        return Renewed(Renewal.RENEWED, monotonic_ms())

    async def release(self, _holder: str, _token: int, _reason: str) -> bool:
        await self.does()
        return True

    # ---- the connections

    async def execute_command(self, name: str, *words: Any) -> Any:
        await self.does()
        if name == "XREAD":
            await anyio.sleep(words[words.index("BLOCK") + 1] / 1000)
        return []


@asynccontextmanager
async def electing(world: World, **changes: Any) -> AsyncIterator[Candidate]:
    """Run a candidate in ``world`` until the block ends."""
    settings = PacedSettings(**{"lease_ttl": TTL_S, "trust_window": TRUST_S, "renew_interval": RENEW_S, **changes})
    redis = cast("Redis", world)
    alice = Candidate(Elector(redis, redis, settings, "alice"))
    alice.elector._lease = world  # type: ignore[assignment]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alice.run)
        yield alice
        alice.stop()


async def test_a_term_outlives_its_trust_window_as_long_as_it_is_renewed() -> None:
    async with electing(world := World()) as alice:
        await anyio.sleep(HOUR_S)
        assert (alice.ended, alice.tokens) == ([], [1])
        assert world.renewals == pytest.approx(HOUR_S / RENEW_S, abs=1)


@pytest.mark.parametrize("does", [refuses, hangs])
async def test_without_renewals_a_term_ends_a_trust_window_after_the_last_that_succeeded(
    does: Callable[[], Awaitable[None]],
) -> None:
    async with electing(world := World()) as alice:
        await anyio.sleep(RENEW_S + 0.1)  # renewed once
        world.does = does
        await anyio.sleep(TRUST_S - 0.2)
        led = [alice.leads]
        await anyio.sleep(0.2)
        assert [*led, alice.leads] == [True, False]
        world.does = answers
        await anyio.sleep(TTL_S)
        assert alice.ended == [(1, "expired")]


async def test_trust_counts_from_the_start_of_a_renewal_however_late_its_answer_comes() -> None:
    async def answers_late() -> None:
        world.does = refuses
        await anyio.sleep(1)

    async with electing(world := World()) as alice:
        await anyio.sleep(RENEW_S - 0.1)
        world.does = answers_late
        await anyio.sleep(TRUST_S)
        led = alice.leads
        await anyio.sleep(0.2)
        assert (led, alice.leads, world.renewals > 1) == (True, False, True)


async def test_a_renewal_that_hangs_does_not_end_the_term_where_the_next_is_answered() -> None:
    async def hangs_once() -> None:
        world.does = answers
        await hangs()

    async with electing(world := World()) as alice:
        await anyio.sleep(RENEW_S + 0.1)
        world.does = hangs_once
        await anyio.sleep(HOUR_S)
        assert (alice.ended, alice.elector.renewals_failed) == ([], 1)


async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with electing(world := World()) as alice:
        await anyio.sleep(RENEW_S + 0.1)
        world.does = refuses
        await anyio.sleep(2 * TRUST_S)
        world.does = answers
        await anyio.sleep(2)
        assert alice.leads
    warnings = [record.message for record in caplog.records if record.name == "reaper.election.elector"]
    assert [line for line in warnings if "Redis" in line] == [
        'cannot reach Redis: doing="renew the lease" cause="Connection refused"',
        "Redis answers again",
    ]
