"""The moves of a worker, which reads, runs, settles and extends. Requests and replies may be lost."""

from hiredis import HiredisError

from tests.explorer.player import Call, InHand, Key, Kind, Player
from tests.explorer.world import BrokenError, World


def read(world: World, player: Player, *, faults: bool = True) -> None:
    """Read new entries. The reply may be lost."""
    if player.is_alone_with_one:
        return
    is_lost = faults and not player.is_plain and world.random.random() < 0.1
    claims = world.setting.policy == "in-place"
    for source, entry_id, flat, times in world.board.read(player.name, world.random.choice((1, 2, 3)), claims=claims):
        world.say("read", player.name, source, entry_id, times, "lost" if is_lost else "")
        if not is_lost:
            world.gets(player, source, entry_id, flat, times)


def take_stock(world: World, player: Player) -> None:
    """Read again what a lost reply has brought."""
    if player.is_plain:
        return
    for source in world.board.sources:
        known = [held.entry_id for held in player.hand.values() if held.source == source]
        for entry_id, flat, times in world.run("adopt", source, player.name, 5, "-", *known)[1]:
            world.say("read again", player.name, entry_id, times)
            world.gets(player, source, entry_id, flat, times)


def start(world: World, player: Player) -> None:
    """Begin a job. Before a job with its last delivery, report its arrival."""
    if not (waiting := player.may_begin()):
        return
    held = world.random.choice(waiting)
    if held.is_last and not held.has_arrived and not player.is_plain:
        held.is_asked = True
        reply = world.run("extend", held.source, player.name, held.entry_id, held.times, 1)
        if world.random.random() < 0.1:
            world.say("reply of an arrival lost", player.name, held.number)
            return
        if isinstance(reply, HiredisError) or reply[0] != 1:
            if not isinstance(reply, HiredisError) and reply[0] == 0:
                del player.hand[held.key]
            return
        held.has_arrived = True
    held.state = "running"
    world.runs[held.number] += 1
    world.say("start", player.name, held.number, held.entry_id)
    if world.kinds[held.number] is Kind.POISON:
        player.fuse = world.random.choice((0, 0, 1, 2, 4))


def finish(world: World, player: Player) -> None:
    """End a job, with a verdict."""
    running = [
        held for held in player.hand.values() if held.state == "running" and world.kinds[held.number] is not Kind.POISON
    ]
    if not running:
        return
    held, random = world.random.choice(running), world.random
    kind, held.verb, held.delay_ms = world.kinds[held.number], "ack", 0
    if kind is Kind.FAILS and held.number not in world.failed:
        world.failed.add(held.number)
        held.verb, held.delay_ms = "nack", random.choice((0, 0, 1_000))
    elif kind is Kind.LATER and random.random() < 0.5:
        held.verb = random.choice(("retry", "hand_back"))
        held.delay_ms = random.choice((0, 1_000)) if held.verb == "retry" else 0
    held.state = "done"
    world.say("finish", player.name, held.number, held.verb)


def settle(world: World, player: Player, *, faults: bool = True) -> None:
    """Send the results of ended jobs. An unanswered call is sent again first."""
    if player.is_plain:
        _settle_plainly(world, player)
        return
    call = player.call = player.call or _next_call(world, player)
    if call is None:
        return
    fate = world.random.random() if faults else 1.0
    if fate < 0.12:
        return
    if fate < 0.24:
        world.late.append(call)
        world.given_up.append(call)
        return
    results = world.carry_out(call)
    world.say("settle", player.name, call.number, call.verdicts, results, "lost" if fate < 0.4 else "")
    if fate < 0.4:
        return
    player.call, player.answered = None, call.number
    if isinstance(results, HiredisError):
        if "OLDCALL" in str(results) and not world.has_lost_writes:
            raise BrokenError("a worker's own call is an old one")
        return
    for verdict, result in zip(call.verdicts, results, strict=True):
        player.hand.pop(verdict.key, None)
        world.believed[verdict.number] += verdict.verb == "ack" and result == 1


def _settle_plainly(world: World, player: Player) -> None:
    for (source, entry_id), held in list(player.hand.items()):
        if held.state == "done":
            done = world.board.redis("XACK", source, world.board.keys.group, entry_id)
            world.done[held.number] += done
            world.believed[held.number] += done
            if source == world.board.keys.retry:
                world.board.redis("XDEL", source, entry_id)
            del player.hand[source, entry_id]


def _next_call(world: World, player: Player) -> Call | None:
    ended = [held for held in player.hand.values() if held.state == "done"]
    if not ended:
        return None
    source = world.random.choice(sorted({held.source for held in ended}))
    items = [held for held in ended if held.source == source][: world.random.choice((1, 2, 3))]
    piles = [pile for acks in (True, False) if (pile := [one for one in items if (one.verb == "ack") is acks])]
    return player.next_call(source, world.random.choice(piles))


def extend(world: World, player: Player, *, faults: bool = True) -> None:
    """Send heartbeats, and do what follows."""
    if player.is_plain:
        return
    for source in sorted({held.source for held in player.hand.values()}):
        items = [held for held in player.hand.values() if held.source == source]
        call = player.heartbeat(source, items)
        fate = world.random.random() if faults else 1.0
        if fate < 0.1:
            world.late.append(call)
            world.given_up.append(call)
            continue
        reply = world.carry_out(call)
        if fate < 0.2 or isinstance(reply, HiredisError):
            continue
        for held, result in zip(items, reply, strict=True):
            if held.state != "done" and not _is_being_settled(player, held.key):
                _learn(world, player, held, result)


def _is_being_settled(player: Player, key: Key) -> bool:
    return player.call is not None and key in [verdict.key for verdict in player.call.verdicts]


def _learn(world: World, player: Player, held: InHand, result: int) -> None:
    if result == 0:
        world.say("taken", player.name, held.number, held.entry_id)
        del player.hand[held.key]
        runs_poison = any(
            one.state == "running" and world.kinds[one.number] is Kind.POISON for one in player.hand.values()
        )
        if not runs_poison:
            player.fuse = None
    elif result == 3 and not player.call:  # rule W6
        [code] = world.run("hold", held.source, player.name, player.name, player.answered, held.entry_id, held.times)
        world.say("held again", player.name, held.number, code)
        world.counts["held"] += code
        if code == 0:
            del player.hand[held.key]
