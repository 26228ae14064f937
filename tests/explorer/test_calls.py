"""The typed calls of the scripts spell their keys and arguments, and read their replies."""

from dataclasses import replace

import pytest
from redis.asyncio import Redis

from tests.explorer.board import Board
from tests.explorer.hands import A, B
from workers.protocol.calls.declined import Declined, DeclineReason
from workers.protocol.calls.group_moves import NO_LEASE, Authority, DueMoves, GroupMoves, Recovery
from workers.protocol.calls.group_moves import Outcome as Recovered
from workers.protocol.calls.moves import (
    HandlerState,
    HeartbeatAnswer,
    HeartbeatEntry,
    Moves,
    Outcome,
    Settled,
    SettleEntry,
    SettleResult,
    Verdict,
)
from workers.protocol.keys import group_keys

pytestmark = [pytest.mark.anyio, pytest.mark.contract]
LEASE = "reaper:7:alice"
STREAM = "orders"


@pytest.fixture
def moves(group_moves: GroupMoves) -> Moves:
    return Moves(group_moves.keys, group_moves.journal_limit, A, "p1")


@pytest.fixture
async def group_moves(board: Board, client: Redis) -> GroupMoves:
    keys = group_keys("orders", "billing")
    await client.set(keys.lease, LEASE)
    for number in range(3):
        board.add("n", number)
    return GroupMoves(keys, 100, Authority(LEASE, 7))


async def test_a_worker_settles_extends_and_holds(moves: Moves, board: Board, client: Redis) -> None:
    one, two, three = (entry_id for _, entry_id, _, _ in board.read(A))
    assert await moves.ack(client, STREAM, [one], number=1) is None
    assert await moves.ack(client, STREAM, [one, two], number=2) == [False, True]
    items = [
        SettleEntry(three, 1, Verdict(Outcome.REJECT, "why"), ("run_ms", 5)),
        SettleEntry(one, 1, Verdict(Outcome.NACK)),
    ]
    [dead, late] = await moves.settle(client, STREAM, items, number=3)
    assert (dead.result, late) == (SettleResult.DEAD, Settled(SettleResult.REJECTED))
    assert dead.detail.encode() == board.redis("XRANGE", moves.keys.dead, "-", "+")[0][0]

    added = board.add("n", 4)
    board.read(A)
    beats = [HeartbeatEntry(added, 1, HandlerState.RUNS), HeartbeatEntry(one, 1, HandlerState.WAITS)]
    assert await moves.extend(client, STREAM, beats) == [HeartbeatAnswer.EXTENDED, HeartbeatAnswer.VANISHED]
    board.redis("XGROUP", "DELCONSUMER", STREAM, "billing", A)
    assert await moves.extend(client, STREAM, beats[:1]) == [HeartbeatAnswer.VANISHED]
    assert await moves.hold(client, STREAM, [(added, 1)], answered=3) == [True]


async def test_what_a_lost_reply_has_brought_is_found(moves: Moves, board: Board, client: Redis) -> None:
    ids = [entry_id for _, entry_id, _, _ in board.read(A)]
    page, found = await moves.adopt(client, STREAM, ids[:1], owner=A, most=1)
    assert (page, *map(list, found)) == ("(" + ids[1].decode(), [ids[1], [b"n", b"1"], 1])


async def test_the_holder_recovers_and_moves_what_is_due(group_moves: GroupMoves, board: Board, client: Redis) -> None:
    ids = [entry_id for _, entry_id, _, _ in board.read(A)]
    other = replace(group_moves, authority=Authority("other", 7))
    young = await group_moves.recover(client, STREAM, ids[:1])
    assert isinstance(young, Recovery)
    assert [one for one, _ in young.due_in_ms] == ids[:1]
    board.age()
    done = await group_moves.recover(client, STREAM, ids)
    assert isinstance(done, Recovery)
    assert (done.next_page, [row.outcome for row in done.rows]) == ("", [Recovered.REDELIVERED] * 3)
    assert await other.recover(client, STREAM, ids) == Declined(DeclineReason.FENCED, LEASE)
    board.age()
    assert await group_moves.move_due(client) == DueMoves(released=[])
    assert await other.move_due(client) == Declined(DeclineReason.FENCED, LEASE)


async def test_an_embedded_worker_recovers_by_the_page(group_moves: GroupMoves, board: Board, client: Redis) -> None:
    board.redis("HSET", group_moves.keys.settings, "recovery", "embedded")
    ids = [entry_id for _, entry_id, _, _ in board.read(A)]
    board.age()
    walker = replace(group_moves, authority=NO_LEASE)
    page = await walker.recover_page(client, STREAM, [], consumer=B, page="-", most=2, room=1)
    assert isinstance(page, Recovery)
    assert (page.next_page, [row.entry_id for row in page.rows]) == ("(" + ids[0].decode(), ids[:1])
    assert [row.outcome for row in page.rows] == [Recovered.CLAIMED]
    assert list(map(list, page.claimed)) == [[ids[0], [b"n", b"0"], 2]]
    page = await walker.recover_page(client, STREAM, [], consumer=B, page=page.next_page, most=1, room=0)
    assert isinstance(page, Recovery)
    assert (page.next_page, page.claimed) == ("(" + ids[1].decode(), [])
    assert [(row.entry_id, row.outcome) for row in page.rows] == [(ids[1], Recovered.REDELIVERED)]
    assert await replace(walker, journal_limit=0).move_due(client) == DueMoves(released=[])
