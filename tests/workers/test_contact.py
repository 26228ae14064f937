"""When embedded recovery waits because Redis was away: what the reader meets, and what `Grace` makes of it."""

from dataclasses import dataclass
from time import monotonic
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.conftest import StartServer
from workers.protocol.connection import commands_client
from workers.runtime.contact import LOOK_S, Contact, grace_of_workers
from workers.runtime.grace import LONGEST_FIRST_WAIT_MS

pytestmark = pytest.mark.anyio

AWAY = RedisConnectionError("gone")
VISIBILITY_S = 20.0


@dataclass
class Clock:
    """The monotonic clock of the test, in seconds; the server's runs with it."""

    now: float = 10_000.0
    ahead_ms: int = 0

    def __call__(self) -> float:
        return self.now

    @property
    def server_ms(self) -> int:
        return round(self.now * 1000) + self.ahead_ms


class OldServer:
    """As much of a client as is needed: the server has been up for long."""

    async def info(self, _section: str) -> dict[str, int]:
        """Say so."""
        return {"uptime_in_seconds": 9_000}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(clock: Clock) -> Contact:
    """A reader's contact, which is good."""
    made = Contact(cast("Redis", OldServer()), grace_of_workers(), clock=clock)
    made.ask()
    made.answered(clock.server_ms)
    return made


def fail_for(seconds: float, reader: Contact, clock: Clock, error: BaseException = AWAY) -> None:
    """Fail twice a second for so long."""
    for _ in range(round(seconds * 2)):
        reader.ask()
        clock.now += 0.5
        reader.failed(error)


def answer(reader: Contact, clock: Clock) -> None:
    reader.ask()
    reader.answered(clock.server_ms)


async def test_a_process_that_has_just_started_lets_living_workers_come_first(reader: Contact, clock: Clock) -> None:
    """The server may have hung until now, and everything look idle."""
    assert await reader.wait_s(VISIBILITY_S) == LONGEST_FIRST_WAIT_MS / 1000
    clock.now += LONGEST_FIRST_WAIT_MS / 1000
    assert await reader.wait_s(VISIBILITY_S) <= 0


async def test_while_redis_answers_nothing_waits(reader: Contact, clock: Clock) -> None:
    clock.now += 60
    answer(reader, clock)
    assert await reader.wait_s(VISIBILITY_S) <= 0


async def test_after_an_outage_recovery_waits_for_the_visibility_timeout(reader: Contact, clock: Clock) -> None:
    fail_for(10, reader, clock)
    answer(reader, clock)
    assert await reader.wait_s(VISIBILITY_S) == pytest.approx(VISIBILITY_S)
    clock.now += VISIBILITY_S
    assert await reader.wait_s(VISIBILITY_S) <= 0


async def test_the_first_to_ask_after_an_outage_waits_too(reader: Contact, clock: Clock) -> None:
    """Nobody has read anything yet: what is asked first may be whether to recover."""
    fail_for(10, reader, clock)
    assert await reader.wait_s(VISIBILITY_S) == pytest.approx(VISIBILITY_S)


async def test_an_outage_that_living_workers_bridge_makes_nobody_wait(reader: Contact, clock: Clock) -> None:
    fail_for(3, reader, clock)
    answer(reader, clock)
    assert await reader.wait_s(VISIBILITY_S) <= 0


async def test_a_server_that_refuses_was_there(reader: Contact, clock: Clock) -> None:
    fail_for(10, reader, clock, ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))
    answer(reader, clock)
    assert await reader.wait_s(VISIBILITY_S) <= 0


async def test_after_a_jump_of_the_servers_clock_recovery_waits(reader: Contact, clock: Clock) -> None:
    clock.now += 1
    clock.ahead_ms = 120_000
    answer(reader, clock)
    assert await reader.wait_s(VISIBILITY_S) == pytest.approx(VISIBILITY_S)


async def test_an_answer_that_was_at_hand_for_long_says_nothing_about_the_clock(reader: Contact, clock: Clock) -> None:
    reader.ask()
    said_ms = clock.server_ms
    clock.now += 10  # our event loop was blocked
    reader.answered(said_ms)
    assert await reader.wait_s(VISIBILITY_S) <= 0


async def test_answers_that_do_not_come_are_an_outage_and_a_pause_of_our_own_is_none(
    reader: Contact, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, waits in ((LOOK_S, True), (10.0, False)):

        async def sleep(_seconds: float, step: float = step, end: float = clock.now + 10) -> None:
            if clock.now >= end:
                raise TimeoutError
            clock.now += step

        monkeypatch.setattr("workers.runtime.contact.anyio.sleep", sleep)
        reader.ask()
        with pytest.raises(TimeoutError):
            await reader.run()
        answer(reader, clock)
        assert (await reader.wait_s(VISIBILITY_S) > 0) == waits
        clock.now += VISIBILITY_S
        answer(reader, clock)


async def test_with_a_server_that_has_just_started_recovery_waits(start_server: StartServer) -> None:
    before = monotonic()
    async with commands_client(start_server().url) as client:
        wait_s = await Contact(client, grace_of_workers()).wait_s(VISIBILITY_S)
    # The server tells how long it is up in whole seconds.
    assert VISIBILITY_S - (monotonic() - before) - 1 <= wait_s <= VISIBILITY_S + 1
