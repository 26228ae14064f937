"""The moves of the holder of the lease, or of embedded workers, which recover and move due jobs."""

from typing import Any

from tests.explorer.board import V_MS
from tests.explorer.player import Player
from tests.explorer.world import BrokenError, World

BUDGET = 1_000_000


def recover(world: World, *, stale: bool = False) -> None:
    """Recover as the holder of the lease, or as one that is it no more."""
    for source, rows in zip(world.board.sources, world.board.all_pending(), strict=True):
        due = [row[0] for row in rows if row[2] > V_MS]
        if not due:
            continue
        reply = world.run("recover", source, world.lease, 1, BUDGET, *due)
        if stale:
            _must_be_fenced(world, reply)
            continue
        _note_recovery(world, reply)


def walk(world: World, player: Player, room: int, *, faults: bool = True) -> None:
    """Recover as an embedded worker, which claims what it has room for. Its reply may be lost."""
    is_lost = faults and world.random.random() < 0.1
    for source in world.board.sources:
        reply = world.run("recover", source, "", 0, BUDGET, player.name, "-", 50, room)
        _note_recovery(world, reply)
        world.counts["claimed"] += len(reply[6])
        for entry_id, flat, times in () if is_lost else reply[6]:
            world.gets(player, source, entry_id, flat, times)


def _note_recovery(world: World, reply: Any) -> None:
    if reply[0] != b"ok" or reply[3]:
        raise BrokenError(f"recover: {reply}")
    for event in reply[4]:
        world.counts[event[1].decode()] += 1
    if reply[4]:
        world.say("recover", reply[4])


def move_due(world: World, *, stale: bool = False) -> None:
    """Move what is due, and look at the gate."""
    reply = world.run("move_due", world.board.keys.stream, world.lease, 1, 10)
    if stale:
        _must_be_fenced(world, reply)
        return
    if reply[0] != b"ok":
        raise BrokenError(f"move_due: {reply}")
    if reply[4]:
        world.say("released", reply[4])
        world.counts["released"] += 1


def _must_be_fenced(world: World, reply: Any) -> None:
    if reply[0] != b"fenced":
        raise BrokenError(f"I3: a stale holder wrote: {reply}")
    world.counts["fenced"] += 1


def change_holder(world: World) -> None:
    """Let the lease expire, be offered, and be taken. In the end, writes of the former holder are rejected."""
    left = world.random.choice((("DEL",), ("SET", "offer:another"), ("SET", f"L{world.term + 1}")))
    world.board.redis(left[0], world.board.lease, *left[1:])
    recover(world, stale=True)
    move_due(world, stale=True)
    world.term += 1
    world.board.redis("SET", world.board.lease, world.lease)
