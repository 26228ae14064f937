"""Elections on a real server, with the begin and the end of terms, and the rules between them.

The trust window and outages, which depend on time, are in `test_trust`, under a virtual clock.
"""

import logging
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis.asyncio import Redis

from reaper.election.elector import EndOfTerm, Term
from reaper.operations.terms import ask_to_step_down
from tests.conftest import StartProxy
from tests.reaper.candidates import Candidate, candidate, for_ever, running
from tests.support.dump import show_journal
from tests.support.proxy import runs
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.keys import namespace_keys
from workers.protocol.messages import entry_ms
from workers.protocol.scripts import load_script

pytestmark = pytest.mark.anyio

KEYS = namespace_keys("reaper")
ACQUIRE, RENEW, RELEASE = (load_script("reaper", f"{name}_lease") for name in ("acquire", "renew", "release"))


async def journal(client: Redis) -> list[tuple[Any, ...]]:
    """Return ``(event, token)`` or ``(event, token, reason)`` for each event."""
    events = await show_journal(client, KEYS.journal)
    return [(event, *(data[name] for name in ("token", "reason") if name in data)) for event, _, data in events]


async def leading(one: Candidate, *, terms: int = 1) -> Term:
    await wait_until(lambda: len(one.began) >= terms and one.leads, f"it leads for the {terms}. time")
    return one.inside[0]


async def over(one: Candidate, *, terms: int = 1) -> None:
    await wait_until(lambda: len(one.ended) >= terms, f"{terms} terms are over")


async def show_journal_times(client: Redis) -> list[int]:
    rows = await client.execute_command("XRANGE", KEYS.journal, "-", "+")
    return [entry_ms(entry_id) for entry_id, _ in rows]


def ends_at_once(reasons: Sequence[EndOfTerm]) -> Any:
    """Return work that gives these reasons, one a term, and then goes on for ever."""
    left = list(reasons)

    async def work(term: Term) -> EndOfTerm:
        return left.pop(0) if left else await for_ever(term)

    return work


# ---- beginning and ending in order


async def test_a_single_candidate_leads_with_the_lease_in_its_name(server: RedisServer, client: Redis) -> None:
    async with running(server.url) as alice:
        term = await leading(alice)
        assert (alice.began, alice.elector.term, alice.elector.terms, alice.ended) == ([term], term, 1, [])
        assert (term.token, await client.get(KEYS.lease)) == (1, term.holder.encode())
        assert term.holder.startswith("alice.")


async def test_who_is_stopped_releases_the_lease_and_says_so(server: RedisServer, client: Redis) -> None:
    async with running(server.url) as alice:
        await leading(alice)
    assert (alice.ended, alice.leads, alice.elector.term) == ([(1, "released")], False, None)
    assert await client.get(KEYS.lease) is None
    assert await journal(client) == [("lease_acquired", 1), ("lease_released", 1, "released")]


async def test_a_release_wakes_a_follower_long_before_it_would_look_again(server: RedisServer) -> None:
    async with running(server.url, "alice", lease_ttl=600) as alice:
        await leading(alice)
        async with running(server.url, "bob", lease_ttl=600) as bob:  # would look again after 300 s
            await wait_until(lambda: bob.elector._journal_seen, "bob has looked")
            alice.stop()
            assert (await leading(bob)).token == 2


async def test_a_follower_takes_over_when_the_lease_of_a_dead_leader_expires(
    server: RedisServer, client: Redis
) -> None:
    await client.set(KEYS.lease, "dead", px=300)
    async with running(server.url, lease_ttl=600) as alice:  # it would look again after 300 s
        await leading(alice)
        assert (alice.tokens, await client.get(KEYS.lease)) == ([1], alice.began[0].holder.encode())


async def test_a_lease_without_an_expiry_locks_nobody_out(server: RedisServer, client: Redis) -> None:
    await client.set(KEYS.lease, "dead")
    async with running(server.url, lease_ttl=0.5) as alice:
        await leading(alice)


async def test_a_broken_journal_only_costs_the_early_wake_up(server: RedisServer, client: Redis) -> None:
    await client.set(KEYS.journal, "no stream")
    await client.set(KEYS.lease, "dead", px=300)
    async with running(server.url) as alice:
        await leading(alice)


async def test_each_attempt_to_lead_again_uses_a_holder_of_its_own(server: RedisServer) -> None:
    async with running(server.url) as alice:
        alice.work = ends_at_once([EndOfTerm.STALE])
        await leading(alice, terms=2)
        first, second = alice.began
        assert first.holder != second.holder


# ---- ends of terms


@pytest.mark.parametrize("reason", [EndOfTerm.STALE, EndOfTerm.TOKEN_BEHIND, EndOfTerm.RELEASED], ids=str)
async def test_work_may_end_its_term_and_the_next_has_a_higher_token(
    server: RedisServer, client: Redis, reason: EndOfTerm
) -> None:
    async with candidate(server.url) as alice, anyio.create_task_group() as tasks:
        alice.work = ends_at_once([reason])
        tasks.start_soon(alice.run)
        await leading(alice, terms=2)
        assert (alice.tokens, alice.ended) == ([1, 2], [(1, str(reason))])
        assert await journal(client) == [
            ("lease_acquired", 1),
            ("lease_released", 1, str(reason)),
            ("lease_acquired", 2),
        ]
        alice.stop()


async def test_work_that_fails_ends_its_term_with_a_traceback_and_another_follows(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_term: Term) -> EndOfTerm:
        raise ZeroDivisionError("nobody expected this")

    async with candidate(server.url) as alice, anyio.create_task_group() as tasks:
        alice.work = fail
        tasks.start_soon(alice.run)
        await over(alice)
        alice.work = for_ever
        await leading(alice, terms=2)
        alice.stop()
    assert alice.ended == [(1, "failed"), (2, "released")]
    assert (await journal(client))[1] == ("lease_released", 1, "failed")
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [(record.message, record.exc_info is not None) for record in failures] == [
        ("work of the leader failed: token=1", True)
    ]


async def test_a_lease_that_is_gone_ends_the_term_without_a_release(server: RedisServer, client: Redis) -> None:
    async with running(server.url) as alice:
        await leading(alice)
        await client.delete(KEYS.lease)
        await leading(alice, terms=2)
        assert (alice.tokens, alice.ended) == ([1, 2], [(1, "not_ours")])
        assert await journal(client) == [("lease_acquired", 1), ("lease_lost", 1, "not_ours"), ("lease_acquired", 2)]


async def test_the_lease_of_somebody_else_is_never_touched(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    async with running(through.url) as alice:
        await leading(alice)
        await client.set(KEYS.lease, "bob", px=7_200_000)
        await over(alice)
        await wait_until(lambda: through.commands["XREAD"], "she follows")
        assert alice.ended == [(1, "not_ours")]
        assert (await client.get(KEYS.lease), await client.pttl(KEYS.lease) > 3_600_000) == (b"bob", False)


async def test_a_hung_connection_ends_leadership_while_the_lease_still_stands(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    async with running(through.url, trust_window=0.5) as alice:
        await leading(alice)
        through.blackhole()
        await wait_until(lambda: not alice.leads, "the work is cancelled")
        assert await client.get(KEYS.lease) == alice.began[-1].holder.encode()
        await through.mend()
        await over(alice, terms=alice.elector.terms)
        assert alice.ended[-1] == (alice.tokens[-1], "expired")


async def test_failing_renewals_end_leadership_by_the_trust_window_too(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    async with running(through.url, trust_window=0.5) as alice:
        await leading(alice)
        await through.cut()
        await over(alice)
        await over(alice, terms=alice.elector.terms)
        assert ({reason for _, reason in alice.ended}, await client.exists(KEYS.lease)) == ({"expired"}, 1)
        assert alice.elector.renewals_failed > 0


async def test_trust_counts_from_before_the_attempt_so_that_a_late_answer_is_worth_nothing(
    server: RedisServer, proxy: StartProxy
) -> None:
    async def work(_term: Term) -> EndOfTerm:
        await anyio.sleep(0.01)
        raise AssertionError("it worked past its trust")

    through = await proxy(server)
    through.delay(0.1)
    async with candidate(through.url, trust_window=0.1) as alice, anyio.create_task_group() as tasks:
        alice.work = work
        tasks.start_soon(alice.run)
        await over(alice)
        through.delay(0)
        alice.stop()
    assert alice.ended[0] == (1, "expired")


# ---- lost and late answers


async def test_an_acquisition_whose_reply_is_lost_is_ours_all_the_same(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    await ACQUIRE.run(client, ["{x}:lease", "{x}:token", "{x}:replicas", "{x}:journal", "{x}:step_down"], ["x", 1, 100])
    dropped = through.drop_reply(runs(ACQUIRE))
    async with running(through.url) as alice:
        await leading(alice)
        assert (dropped.happened, alice.tokens, await journal(client)) == (True, [1], [("lease_acquired", 1)])


async def test_a_renewal_whose_reply_is_lost_does_not_end_the_term(server: RedisServer, proxy: StartProxy) -> None:
    through = await proxy(server)
    async with running(through.url) as alice:
        await leading(alice)
        dropped = through.drop_reply(runs(RENEW), nth=2)
        await dropped.wait()
        renewed = through.commands["EVALSHA"]
        await wait_until(lambda: through.commands["EVALSHA"] > renewed + 2, "she renews again")
        assert (alice.ended, alice.elector.renewals_failed, alice.leads) == ([], 1, True)


async def test_a_renewal_that_hangs_does_not_end_the_term_where_another_connection_works(
    server: RedisServer, proxy: StartProxy
) -> None:
    through = await proxy(server)
    async with running(through.url, trust_window=60, renew_interval=0.1) as alice:  # a command waits for 5 s
        await leading(alice)
        held = through.hold_request(runs(RENEW), nth=2)
        await held.wait()
        renewed = through.commands["EVALSHA"]
        await wait_until(lambda: through.commands["EVALSHA"] > renewed + 2 or alice.ended, "she renews again")
        assert (alice.ended, alice.leads) == ([], True)


async def test_who_is_stopped_before_the_answer_to_its_attempt_leaves_no_lease_behind(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    await ACQUIRE.run(client, ["{x}:lease", "{x}:token", "{x}:replicas", "{x}:journal", "{x}:step_down"], ["x", 1, 100])
    held = through.hold_request(runs(ACQUIRE))
    async with running(through.url) as alice:
        await held.wait()
        through.delay(60)
        held.release()
        await wait_until(lambda: client.exists(KEYS.lease), "the lease is hers, and she does not know")
        through.delay(0)
    assert (alice.began, await client.exists(KEYS.lease)) == ([], 0)


async def test_a_release_whose_reply_is_lost_is_told_once(
    server: RedisServer, proxy: StartProxy, client: Redis
) -> None:
    through = await proxy(server)
    await RELEASE.run(client, ["{x}:lease", "{x}:journal"], ["x", 1, "", 100])
    dropped = through.drop_reply(runs(RELEASE))
    async with running(through.url) as alice:
        await leading(alice)
    assert dropped.happened
    assert await journal(client) == [("lease_acquired", 1), ("lease_released", 1, "released")]


async def test_who_cannot_release_stops_all_the_same(server: RedisServer, proxy: StartProxy, client: Redis) -> None:
    through = await proxy(server)
    async with running(through.url) as alice:
        await leading(alice)
        await through.cut()
    assert (alice.ended, await client.exists(KEYS.lease)) == ([(1, "released")], 1)


# ---- outages


async def test_an_answer_that_is_read_late_does_not_say_what_time_the_server_has(
    server: RedisServer, proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reaper.election.elector.PROMPT_S", 0.1)
    through = await proxy(server)
    async with running(through.url) as alice:
        await leading(alice)
        through.delay(0.15)
        late = through.commands["EVALSHA"]
        await wait_until(lambda: through.commands["EVALSHA"] > late + 1, "she renews, and hears of it late")
        alice.elector.clock_offset_ms = 0
        await wait_until(lambda: through.commands["EVALSHA"] > late + 3, "and once more")
        assert alice.elector.clock_offset_ms == 0


# ---- a token that was met


async def test_the_leader_raises_the_counter_past_a_token_that_was_met(server: RedisServer, client: Redis) -> None:
    async with running(server.url) as alice:
        term = await leading(alice)
        assert await alice.elector.raise_token(term, 41)
        assert await client.get(KEYS.token) == b"41"


async def test_who_lost_the_lease_raises_no_counter(server: RedisServer, client: Redis) -> None:
    async with running(server.url, renew_interval=600) as alice:
        term = await leading(alice)
        await client.set(KEYS.lease, "bob", px=7_200_000)
        assert not await alice.elector.raise_token(term, 41)
        assert await client.get(KEYS.token) == b"1"


# ---- several candidates


async def test_of_three_candidates_one_leads_and_each_term_has_a_token_of_its_own(server: RedisServer) -> None:
    crowded: list[int] = []

    async with (
        candidate(server.url, "alice") as alice,
        candidate(server.url, "bob") as bob,
        candidate(server.url, "carol") as carol,
        anyio.create_task_group() as tasks,
    ):
        everybody = (alice, bob, carol)

        async def short(_term: Term) -> EndOfTerm:
            for _ in range(20):
                crowded.append(sum(one.leads for one in everybody))
                await anyio.lowlevel.checkpoint()
            return EndOfTerm.RELEASED

        for one in everybody:
            one.work = short
            tasks.start_soon(one.run)
        await wait_until(lambda: sum(len(one.ended) for one in everybody) >= 30, "30 terms are over")
        tasks.cancel_scope.cancel()
    tokens = sorted(token for one in everybody for token in one.tokens)
    assert tokens == list(range(1, len(tokens) + 1))
    assert set(crowded) == {1}


async def test_no_two_candidates_work_with_one_token_though_the_lease_is_lost_again_and_again(
    server: RedisServer, client: Redis
) -> None:
    async with (
        running(server.url, "alice", renew_interval=0.01) as alice,
        running(server.url, "bob", renew_interval=0.01) as bob,
    ):
        for terms in range(1, 11):
            await wait_until(lambda: len(alice.began + bob.began) >= terms, f"term {terms} has begun")  # noqa: B023
            await client.delete(KEYS.lease)
        tokens = alice.tokens + bob.tokens
    assert len(set(tokens)) == len(tokens)
    assert await journal(client) != []


# ---- stepping down


async def test_a_leader_that_is_asked_to_step_down_releases_and_leaves_the_lease_to_others(
    server: RedisServer, client: Redis
) -> None:
    async with running(server.url, "alice-1") as alice, running(server.url, "bob-2") as bob:
        await wait_until(lambda: alice.leads or bob.leads, "one of them leads")
        leader, other = (alice, bob) if alice.leads else (bob, alice)
        assert await ask_to_step_down(client, KEYS, cooldown_ms=3_600_000, alone=True) == leader.began[0].holder
        await leading(other)
        assert leader.ended == [(1, "stepped_down")]
        assert await journal(client) == [
            ("lease_acquired", 1), ("lease_released", 1, "stepped_down"), ("lease_acquired", 2)
        ]  # fmt: skip


async def test_alone_it_is_elected_again_once_the_cooldown_is_over(server: RedisServer, client: Redis) -> None:
    async with running(server.url, "alice-1") as alice:
        await leading(alice)
        await ask_to_step_down(client, KEYS, cooldown_ms=300, alone=True)
        await leading(alice, terms=2)
        assert (alice.tokens, alice.ended) == ([1, 2], [(1, "stepped_down")])
        first, _, second = await show_journal_times(client)
        assert second - first >= 300
