"""The world of a play has jobs, workers, a holder of the lease or walkers, and faults between them.

Time passes by `XCLAIM … IDLE` on a real server. Only the workers are modelled.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hiredis import HiredisError

from tests.explorer.board import LEASE, Board, Word, fields_of
from tests.explorer.player import Call, Heartbeat, InHand, Kind, Player

EXPECTED_ERRORS = ("OLDCALL", "NOGROUP")
DECLARED_DEAD = 0.3
"""How often a process that died is followed by one of its name, which says so."""


class BrokenError(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Setting:
    """Settings of a play."""

    policy: str
    recovery: str
    plain: float = 0.0
    """The part of workers that are plain."""
    strangers: bool = False
    """Somebody deletes consumers."""
    failovers: bool = False
    """The server loses its latest writes, now and then."""


class World:
    """The state of a play, and its possible moves."""

    def __init__(self, board: Board, setting: Setting, seed: int) -> None:
        self.board, self.setting = board, setting
        self.random = random = Random(seed)
        self.limit = random.choice((2, 3, 3))
        board.prepare(setting.policy, setting.recovery, limit=self.limit)
        self.term = 1
        count = random.choice((2, 3, 4, 5))
        poison = random.randrange(count)
        kinds = (Kind.OK,) if setting.plain else (Kind.OK, Kind.OK, Kind.OK, Kind.FAILS, Kind.LATER)
        self.kinds = [Kind.POISON if number == poison else random.choice(kinds) for number in range(count)]
        board.redis.together(*(("XADD", board.keys.stream, "*", "n", number) for number in range(count)))
        self.counts: Counter[str] = Counter()
        self.log: list[tuple[object, ...]] = []
        self.runs: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        """How often Redis has said that a job is done, and how often its worker heard that."""
        self.believed: Counter[int] = Counter()
        self.failed: set[int] = set()
        self.first_replies: dict[tuple[str, int], list[Any]] = {}
        self.late: list[Call | Heartbeat] = []
        """Calls that were given up, and may arrive later."""
        self.given_up: list[Call | Heartbeat] = []
        """All of them: each arrives once more in the end."""
        self.excused: set[int] = set()
        """Jobs that may be dead letters: their last delivery ended by a fault."""
        self.snapshot: dict[bytes, bytes] | None = None
        self.has_lost_writes = False
        self._born = 0
        self.players = [self.new_player() for _ in range(random.choice((2, 2, 3)))]

    def new_player(self) -> Player:
        """Start a worker."""
        self._born += 1
        is_plain = self.random.random() < self.setting.plain
        return Player(f"plain-{self._born}" if is_plain else f"w~{self._born:012x}", is_plain)

    def say(self, *what: object) -> None:
        """Note a step for a later replay."""
        self.log.append(what)

    def run(self, name: str, source: str, *argv: Word) -> Any:
        """Run a script. Return its reply or an expected error."""
        reply = self.board.call(name, source, *argv)
        if isinstance(reply, HiredisError) and not any(word in str(reply) for word in EXPECTED_ERRORS):
            raise BrokenError(f"script error {name}: {reply}")
        return reply

    # ---- calls as the server carries them out

    def carry_out(self, call: Call | Heartbeat) -> Any:
        """Let a call arrive. Count its effects."""
        if isinstance(call, Heartbeat):
            return self.run("extend", call.source, call.consumer, *call.words)
        reply = self.run(call.script, call.source, call.consumer, call.consumer, call.number, *call.words)
        if isinstance(reply, HiredisError):
            self.counts["old"] += "OLDCALL" in str(reply)
            return reply
        results = [1] * reply if isinstance(reply, int) else reply
        key = call.consumer, call.number
        if key in self.first_replies:
            self.counts["resent"] += 1
            if self.first_replies[key] != results and not self.has_lost_writes:
                raise BrokenError(f"sent again: {results}, at first {self.first_replies[key]}")
        if key not in self.first_replies or self.has_lost_writes:
            self.first_replies[key] = results
            self._count(call, results)
        return results

    def _count(self, call: Call, results: Sequence[Any]) -> None:
        for verdict, result in zip(call.verdicts, results, strict=True):
            if verdict.verb == "ack":
                self.done[verdict.number] += result == 1
            if result == 0:
                self.counts["rejected"] += 1
            elif verdict.verb != "ack" and not self.has_lost_writes:
                for player in self.players:
                    held = player.hand.get(verdict.key)
                    if held and player.name != call.consumer and held.times > verdict.times:
                        raise BrokenError(f"I2: a verdict of {call.consumer} took {verdict.number} from {player.name}")

    # ---- workers

    def excuse(self, player: Player) -> None:
        """Note that what has its last delivery here ends by a fault."""
        self.excused |= {
            held.number for held in player.hand.values() if held.is_last and (held.is_asked or player.is_plain)
        }

    def crash(self, player: Player, why: str) -> None:
        """End a process, and start another one."""
        self.say("crash", player.name, why)
        self.counts["crashed"] += 1
        if why == "fault":
            self.excuse(player)
        player.is_dead = True
        self.players[self.players.index(player)] = self.new_player()
        if player.is_plain:
            if why == "fault" or any(self._kills_others(player, held) for held in player.hand.values()):
                self.excused |= {held.number for held in player.hand.values()}
        elif self.random.random() < DECLARED_DEAD:
            for source in self.board.sources:
                self.run("adopt", source, player.name, 0, "-")
            self.say("declared dead", player.name)

    def _kills_others(self, player: Player, held: InHand) -> bool:
        """Tell whether it is a fresh poison job, or one that was taken from a plain worker that ran on."""
        if self.kinds[held.number] is not Kind.POISON:
            return False
        rows = self.board.pending(held.source, held.entry_id, held.entry_id)
        return not held.is_quarantined or [row[1] for row in rows] != [player.name.encode()]

    def gets(self, player: Player, source: str, entry_id: bytes, flat: list[bytes], times: int) -> None:
        """Put a delivery into a worker's hands, unless it is there (rule W5)."""
        known = player.hand.get((source, entry_id))
        if known and known.times == times:
            return
        fields = fields_of(flat)
        is_quarantined = b"reaper.quarantined" in fields
        count = min(int(fields.get(b"reaper.deliveries", 0)), self.limit - 1) + times
        is_last = is_quarantined or count >= self.limit
        player.hand[source, entry_id] = InHand(int(fields[b"n"]), source, entry_id, times, is_quarantined, is_last)

    @property
    def lease(self) -> str:
        """The value of the lease in this term. It is '' with embedded recovery."""
        return "" if self.setting.recovery == "embedded" else f"L{self.term}"

    # ---- moves of the world itself

    def pass_time(self) -> None:
        """Let a visibility timeout pass. Most live workers send heartbeats in that time."""
        live = [one.name for one in self.players if not one.frozen and self.random.random() < 0.93]
        for player in self.players:
            if player.name not in live:
                self.excuse(player)
        self.board.age(live)
        self.say("time passes", live)

    def make_due(self) -> None:
        """Let what is delayed be due."""
        keys = self.board.keys
        for member in self.board.redis("ZRANGEBYSCORE", keys.schedule, "-inf", 2**51):
            self.board.redis("ZADD", keys.schedule, 0, member)

    def delete_consumer(self, player: Player) -> None:
        """Delete the consumer of a worker, as a stranger."""
        source = self.random.choice(self.board.sources)
        self.board.redis("XGROUP", "DELCONSUMER", source, self.board.keys.group, player.name)
        self.say("consumer deleted", player.name)

    def fail_over(self) -> None:
        """Save all keys, or restore them."""
        redis = self.board.redis
        if self.snapshot is None:
            keys = redis("KEYS", "*")
            self.snapshot = dict(zip(keys, redis.together(*(("DUMP", key) for key in keys)), strict=True))
        elif self.random.random() < 0.5:
            before = self._now_ms()
            while self._now_ms() == before:
                pass  # within a millisecond an ID that was lost would be made again, for another job
            redis("FLUSHDB")
            redis.together(*(("RESTORE", key, 0, dumped) for key, dumped in self.snapshot.items()))
            self.snapshot, self.has_lost_writes = None, True
            self.term += 1
            redis("SET", self.board.lease, self.lease or LEASE)
            self.counts["failovers"] += 1
            self.say("failover: writes lost")

    def _now_ms(self) -> int:
        seconds, microseconds = self.board.redis("TIME")
        return int(seconds) * 1_000 + int(microseconds) // 1_000
