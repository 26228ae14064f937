"""A play: random steps, then rest, then every call that was given up arrives once more, then rest; then the judge."""

from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType

from tests.explorer import recovering, working
from tests.explorer.board import Board
from tests.explorer.player import Heartbeat, Kind, Player
from tests.explorer.world import BrokenError, Setting, World

READ, START, FINISH, SETTLE, EXTEND, STOCK, CRASH, FREEZE, TIME, RECOVER = range(10)
CALM = (0.18, 0.36, 0.48, 0.62, 0.68, 0.70, 0.715, 0.73, 0.80, 0.88)
TENSE = (0.13, 0.24, 0.32, 0.42, 0.56, 0.57, 0.59, 0.65, 0.76, 0.88)
"""Up to where a number drawn from 0 to 1 means each of the steps above."""
MOST_ROUNDS = 120
"""So many rounds without faults bring everything to rest, or something hangs."""

CONFIGURATIONS = MappingProxyType(
    {
        "stream, reaper": Setting("stream", "reaper"),
        "retry-stream, reaper, strangers": Setting("retry-stream", "reaper", strangers=True),
        "stream, reaper, plain workers": Setting("stream", "reaper", plain=1.0),
        "stream, embedded": Setting("stream", "embedded"),
        "in-place, embedded": Setting("in-place", "embedded"),
        "retry-stream, reaper, failovers": Setting("retry-stream", "reaper", failovers=True),
    }
)


@dataclass(frozen=True)
class Result:
    """The result of a play."""

    counts: "Counter[str]"
    broken: str
    """What promise was broken, '' = none."""
    log: list[tuple[object, ...]]


def play(board: Board, setting: Setting, seed: int) -> Result:
    """Play one seed."""
    world = World(board, setting, seed)
    broken = ""
    try:
        bounds = world.random.choice((CALM, TENSE))
        for _ in range(world.random.choice((20, 35, 60))):
            step(world, bounds)
        rest(world)
        for call in list(world.given_up):
            world.carry_out(call)
            world.counts["late"] += 1
        rest(world)
        judge(world)
    except BrokenError as error:
        broken = str(error)
    return Result(world.counts, broken, world.log)


def step(world: World, bounds: tuple[float, ...]) -> None:
    """Let one thing happen."""
    random = world.random
    player, drawn = random.choice(world.players), random.random()
    if player.fuse == 0:
        world.crash(player, "poison")
        return
    if player.fuse is not None:
        player.fuse -= 1
    if player.frozen:
        player.frozen -= 1
        if drawn < 0.6:
            return
    if world.late and random.random() < 0.08:
        _arrive_late(world)
        return
    for number, bound in enumerate(bounds):
        if drawn < bound:
            _act(world, player, number)
            return
    _others_act(world, player, drawn)


def _act(world: World, player: Player, number: int) -> None:
    if number == CRASH:
        world.crash(player, "fault")
    elif number == FREEZE:
        player.frozen = 4
    elif number == TIME:
        world.pass_time()
    elif number == RECOVER:
        if world.setting.recovery == "reaper":
            recovering.recover(world)
        else:
            recovering.walk(world, player, world.random.choice((0, 1, 2, 3)))
    else:
        does = {
            READ: working.read, START: working.start, FINISH: working.finish, SETTLE: working.settle,
            EXTEND: working.extend, STOCK: working.take_stock,
        }  # fmt: skip
        does[number](world, player)


def _others_act(world: World, player: Player, drawn: float) -> None:
    if drawn < 0.93:
        recovering.move_due(world)
    elif drawn < 0.95:
        world.make_due()
    elif drawn < 0.965:
        if world.late:
            _arrive_late(world)
    elif drawn < 0.975:
        if world.setting.recovery == "reaper":
            recovering.change_holder(world)
    elif world.setting.strangers and drawn < 0.99:
        world.delete_consumer(player)
    elif world.setting.failovers:
        world.fail_over()


def _arrive_late(world: World) -> None:
    call = world.random.choice(world.late)
    if world.random.random() < 0.6:
        world.late.remove(call)
    world.counts["late"] += 1
    reply = world.carry_out(call)
    world.say("comes late", call, None if isinstance(call, Heartbeat) else reply)


def rest(world: World) -> None:
    """Go on without faults until nothing is left to do. Raises BrokenError if that does not happen."""
    for call in world.late:
        world.carry_out(call)
    world.late.clear()
    for player in world.players:
        working.take_stock(world, player)
    for _ in range(MOST_ROUNDS):
        for player in world.players:
            player.frozen = 0
        world.make_due()
        world.pass_time()
        if world.setting.recovery == "reaper":
            recovering.recover(world)
        recovering.move_due(world)
        for player in list(world.players):
            _work(world, player)
        if _is_at_rest(world):
            return
    raise BrokenError(f"I6: it does not come to rest: {world.board.all_pending()}")


def _work(world: World, player: Player) -> None:
    if world.setting.recovery == "embedded":
        recovering.walk(world, player, 3, faults=False)
    working.read(world, player, faults=False)
    for _ in range(6):
        working.start(world, player)
        if player.fuse is not None:
            world.crash(player, "poison")
            return
        working.finish(world, player)
        working.settle(world, player, faults=False)
    working.extend(world, player, faults=False)


def _is_at_rest(world: World) -> bool:
    if any(player.hand or player.call for player in world.players):
        return False
    return not world.board.has_work(with_copies=not world.setting.strangers)


def judge(world: World) -> None:
    """Compare what happened with the promises. Raises BrokenError."""
    letters = world.board.dead_letters()
    dead = Counter(int(letter[b"n"]) for letter in letters)
    by_crash = {int(letter[b"n"]) for letter in letters if letter[b"reaper.dead.reason"] == b"max_deliveries"}
    is_lossy, drops = world.has_lost_writes, world.setting.strangers
    for number, kind in enumerate(world.kinds):
        done = world.done[number]
        if kind is Kind.POISON:
            if not dead[number] and not drops:
                raise BrokenError("I5: the poison job is no dead letter")
            if not is_lossy and (dead[number] > 1 or world.runs[number] > world.limit + 2):
                raise BrokenError(f"I5: the poison job ran {world.runs[number]} times, {dead[number]} dead letters")
            continue
        if done + dead[number] == 0 and not drops:
            raise BrokenError(f"I1: job {number} ({kind}) is lost")
        if world.believed[number] > done:
            raise BrokenError(f"I4: job {number} is believed to be done {world.believed[number]} times, done {done}")
        if not is_lossy and done + dead[number] > 1:
            raise BrokenError(f"I4: job {number} is done {done} times, and {dead[number]} dead letters")
        if number in by_crash and not is_lossy and number not in world.excused:
            raise BrokenError(f"I5: job {number} ({kind}) is innocent, and a dead letter")
