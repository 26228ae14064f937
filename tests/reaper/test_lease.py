"""The lease in Redis: what each call answers, and what it leaves behind."""

from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from reaper.election.lease import Attempt, Lease, Renewal, Renewed
from tests.conftest import StartProxy
from tests.support.dump import dump
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client
from workers.protocol.keys import namespace_keys
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

TTL_MS = 3_600_000
"""It does not run out within a test."""
LESS_MS = TTL_MS // 2
KEYS = namespace_keys("reaper")


def acquired(holder: str, token: int) -> tuple[str, str, dict[str, Any]]:
    return "lease_acquired", "", {"holder": holder, "token": token}


def released(holder: str, token: int, reason: str) -> tuple[str, str, dict[str, Any]]:
    return "lease_released", "", {"holder": holder, "token": token, "reason": reason}


@pytest.fixture
def lease(client: Redis) -> Lease:
    return Lease(client, KEYS, TTL_MS, journal_maxlen=1_000)


async def server_ms(client: Redis) -> int:
    seconds, microseconds = await client.time()
    return int(seconds * 1000 + microseconds // 1000)


async def time_left(client: Redis) -> int:
    return int(await client.pttl(KEYS.lease))


def outcome(attempt: Attempt) -> tuple[bool, int, str]:
    return attempt.won, attempt.token, attempt.holder


# ---- acquire


async def test_a_free_lease_is_won_with_the_first_token(lease: Lease, client: Redis) -> None:
    attempt = await lease.acquire("alice")
    assert attempt == Attempt(True, 1, "alice", TTL_MS, attempt.server_ms)
    assert await dump(client) == {KEYS.lease: "alice", KEYS.token: "1", KEYS.journal: [acquired("alice", 1)]}
    assert LESS_MS < await time_left(client) <= TTL_MS


async def test_an_attempt_tells_the_servers_time(lease: Lease, client: Redis) -> None:
    before = await server_ms(client)
    for holder in ("alice", "alice", "bob"):  # won, own, lost
        assert before <= (await lease.acquire(holder)).server_ms <= await server_ms(client)


async def test_a_lease_that_is_taken_is_lost_and_left_alone(lease: Lease, client: Redis) -> None:
    await lease.acquire("alice")
    before = await dump(client)
    attempt = await lease.acquire("bob")
    assert outcome(attempt) == (False, 0, "alice")
    assert 0 < attempt.left_ms <= TTL_MS
    assert await dump(client) == before


async def test_our_own_value_counts_as_won_and_lasts_its_whole_time_again(lease: Lease, client: Redis) -> None:
    await lease.acquire("alice")
    await client.pexpire(KEYS.lease, LESS_MS)
    before = await dump(client)
    assert outcome(await lease.acquire("alice")) == (True, 1, "alice")
    assert await time_left(client) > LESS_MS
    assert await dump(client) == before  # no second event, no further token


async def test_our_own_value_gets_a_token_where_the_counter_is_lost(lease: Lease, client: Redis) -> None:
    await lease.acquire("alice")
    await client.delete(KEYS.token)
    assert outcome(await lease.acquire("alice")) == (True, 1, "alice")
    assert await client.get(KEYS.token) == b"1"


async def test_a_lost_reply_does_not_lock_its_winner_out(server: RedisServer, proxy: StartProxy, client: Redis) -> None:
    through = await proxy(server)
    at_risk = commands_client(through.url)
    lease = Lease(at_risk, KEYS, TTL_MS, 1_000)
    await load_script("reaper", "acquire_lease").run(  # so that the server knows the script
        client, ["{x}:lease", "{x}:token", "{x}:replicas", "{x}:journal", "{x}:step_down"], ["x", TTL_MS, 1_000]
    )
    dropped = through.drop_reply(runs(load_script("reaper", "acquire_lease")))
    with pytest.raises(RedisConnectionError):
        await lease.acquire("alice")
    assert dropped.happened
    assert outcome(await lease.acquire("alice")) == (True, 1, "alice")
    assert (await dump(client))[KEYS.journal] == [acquired("alice", 1)]
    await at_risk.aclose()


@pytest.mark.parametrize("left_ms", [None, TTL_MS * 1_000], ids=["no expiry", "an expiry too far away"])
async def test_a_lease_that_would_lock_everybody_out_is_cut_to_the_ttl(
    lease: Lease, client: Redis, left_ms: int | None
) -> None:
    await client.set(KEYS.lease, "gone", px=left_ms)
    attempt = await lease.acquire("bob")
    assert (outcome(attempt), attempt.left_ms) == ((False, 0, "gone"), TTL_MS)
    assert 0 < await time_left(client) <= TTL_MS


async def test_each_term_has_a_higher_token(lease: Lease) -> None:
    tokens = []
    for holder in ("alice", "bob", "alice"):
        attempt = await lease.acquire(holder)
        tokens.append(attempt.token)
        await lease.release(holder, attempt.token, "released")
    assert tokens == [1, 2, 3]


async def test_a_broken_journal_keeps_nobody_from_the_lease(lease: Lease, client: Redis) -> None:
    await client.set(KEYS.journal, "no stream")
    assert outcome(await lease.acquire("alice")) == (True, 1, "alice")
    assert await lease.release("alice", 1, "released")


# ---- renew


async def test_the_holder_moves_the_expiry(lease: Lease, client: Redis) -> None:
    await lease.acquire("alice")
    await client.pexpire(KEYS.lease, LESS_MS)
    before = await server_ms(client)
    renewed = await lease.renew("alice")
    assert renewed == Renewed(Renewal.RENEWED, renewed.server_ms)
    assert before <= renewed.server_ms <= await server_ms(client)
    assert await time_left(client) > LESS_MS


@pytest.mark.parametrize("lease_now", [None, "bob"], ids=["gone", "somebody else's"])
async def test_a_lease_that_is_not_ours_is_not_renewed(lease: Lease, client: Redis, lease_now: str | None) -> None:
    if lease_now:
        await client.set(KEYS.lease, lease_now, px=LESS_MS)
    before = await dump(client)
    renewed = await lease.renew("alice")
    assert renewed == Renewed(Renewal.NOT_OURS, renewed.server_ms)
    assert await dump(client) == before
    assert await time_left(client) <= LESS_MS


# ---- release


async def test_a_released_lease_is_gone_and_followers_are_told_why(lease: Lease, client: Redis) -> None:
    await lease.acquire("alice")
    assert await lease.release("alice", 1, "stale")
    assert await dump(client) == {
        KEYS.token: "1",
        KEYS.journal: [acquired("alice", 1), released("alice", 1, "stale")],
    }


@pytest.mark.parametrize("lease_now", [None, "bob"], ids=["gone", "somebody else's"])
async def test_a_lease_that_is_not_ours_is_not_released(lease: Lease, client: Redis, lease_now: str | None) -> None:
    if lease_now:
        await client.set(KEYS.lease, lease_now, px=LESS_MS)
    before = await dump(client)
    assert not await lease.release("alice", 1, "released")
    assert await dump(client) == before


# ---- raise the token


@pytest.mark.parametrize(
    ("counter", "at_least", "then"),
    [(1, 41, b"41"), (50, 41, b"50"), (None, 41, b"41")],
    ids=["behind", "high enough", "lost"],
)
async def test_the_holder_lifts_the_counter_but_never_lowers_it(
    lease: Lease, client: Redis, counter: int | None, at_least: int, then: bytes
) -> None:
    await lease.acquire("alice")
    await (client.delete(KEYS.token) if counter is None else client.set(KEYS.token, counter))
    assert await lease.raise_token("alice", at_least)
    assert await client.get(KEYS.token) == then


async def test_nobody_else_lifts_the_counter(lease: Lease, client: Redis) -> None:
    await lease.acquire("alice")
    assert not await lease.raise_token("bob", 41)
    assert await client.get(KEYS.token) == b"1"
