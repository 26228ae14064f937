"""The world of a play has jobs, workers, a holder of the lease or walkers, and faults between them.

Time passes by `XCLAIM … IDLE` on a real server. Only the workers are modelled.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from hiredis import HiredisError

from tests.explorer.board import LEASE, V_MS, Board, Word, fields_of
from tests.explorer.player import Call, Heartbeat, InHand, Key, Kind, Player

EXPECTED_ERRORS = ("OLDCALL", "NOGROUP")
BUDGET = 1_000_000
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
        return Player(f"plain-{self._born}" if is_plain else f"w.{self._born:012x}", is_plain)

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

    def read(self, player: Player, *, faults: bool = True) -> None:
        """Read new entries. The reply may be lost."""
        if player.is_alone_with_one:
            return
        is_lost = faults and not player.is_plain and self.random.random() < 0.1
        claims = self.setting.policy == "in-place"
        for source, entry_id, flat, times in self.board.read(player.name, self.random.choice((1, 2, 3)), claims=claims):
            self.say("read", player.name, source, entry_id, times, "lost" if is_lost else "")
            if not is_lost:
                self.gets(player, source, entry_id, flat, times)

    def take_stock(self, player: Player) -> None:
        """Read again what a lost reply has brought."""
        if player.is_plain:
            return
        for source in self.board.sources:
            known = [held.entry_id for held in player.hand.values() if held.source == source]
            for entry, times in self.run("adopt", source, player.name, 5, "-", *known)[1]:
                self.say("read again", player.name, entry[0], times)
                self.gets(player, source, entry[0], entry[1], times)

    def start(self, player: Player) -> None:
        """Begin a job. Before a job with its last delivery, report its arrival."""
        if not (waiting := player.may_begin()):
            return
        held = self.random.choice(waiting)
        if held.is_last and not held.has_arrived and not player.is_plain:
            held.is_asked = True
            reply = self.run("extend", held.source, player.name, held.entry_id, held.times, 1)
            if self.random.random() < 0.1:
                self.say("reply of an arrival lost", player.name, held.number)
                return
            if isinstance(reply, HiredisError) or reply[0] != 1:
                if not isinstance(reply, HiredisError) and reply[0] == 0:
                    del player.hand[held.key]
                return
            held.has_arrived = True
        held.state = "running"
        self.runs[held.number] += 1
        self.say("start", player.name, held.number, held.entry_id)
        if self.kinds[held.number] is Kind.POISON:
            player.fuse = self.random.choice((0, 0, 1, 2, 4))

    def finish(self, player: Player) -> None:
        """End a job, with a verdict."""
        running = [
            held
            for held in player.hand.values()
            if held.state == "running" and self.kinds[held.number] is not Kind.POISON
        ]
        if not running:
            return
        held, random = self.random.choice(running), self.random
        kind, held.verb, held.delay_ms = self.kinds[held.number], "ack", 0
        if kind is Kind.FAILS and held.number not in self.failed:
            self.failed.add(held.number)
            held.verb, held.delay_ms = "nack", random.choice((0, 0, 1_000))
        elif kind is Kind.LATER and random.random() < 0.5:
            held.verb = random.choice(("retry", "hand_back"))
            held.delay_ms = random.choice((0, 1_000)) if held.verb == "retry" else 0
        held.state = "done"
        self.say("finish", player.name, held.number, held.verb)

    def settle(self, player: Player, *, faults: bool = True) -> None:
        """Send the results of ended jobs. An unanswered call is sent again first."""
        if player.is_plain:
            self._settle_plainly(player)
            return
        call = player.call = player.call or self._next_call(player)
        if call is None:
            return
        fate = self.random.random() if faults else 1.0
        if fate < 0.12:
            return
        if fate < 0.24:
            self.late.append(call)
            self.given_up.append(call)
            return
        results = self.carry_out(call)
        self.say("settle", player.name, call.number, call.verdicts, results, "lost" if fate < 0.4 else "")
        if fate < 0.4:
            return
        player.call, player.answered = None, call.number
        if isinstance(results, HiredisError):
            if "OLDCALL" in str(results) and not self.has_lost_writes:
                raise BrokenError("a worker's own call is an old one")
            return
        for verdict, result in zip(call.verdicts, results, strict=True):
            player.hand.pop(verdict.key, None)
            self.believed[verdict.number] += verdict.verb == "ack" and result == 1

    def _settle_plainly(self, player: Player) -> None:
        for (source, entry_id), held in list(player.hand.items()):
            if held.state == "done":
                done = self.board.redis("XACK", source, self.board.keys.group, entry_id)
                self.done[held.number] += done
                self.believed[held.number] += done
                if source == self.board.keys.retry:
                    self.board.redis("XDEL", source, entry_id)
                del player.hand[source, entry_id]

    def _next_call(self, player: Player) -> Call | None:
        ended = [held for held in player.hand.values() if held.state == "done"]
        if not ended:
            return None
        source = self.random.choice(sorted({held.source for held in ended}))
        items = [held for held in ended if held.source == source][: self.random.choice((1, 2, 3))]
        piles = [pile for acks in (True, False) if (pile := [one for one in items if (one.verb == "ack") is acks])]
        return player.next_call(source, self.random.choice(piles))

    def extend(self, player: Player, *, faults: bool = True) -> None:
        """Send heartbeats, and do what follows."""
        if player.is_plain:
            return
        for source in sorted({held.source for held in player.hand.values()}):
            items = [held for held in player.hand.values() if held.source == source]
            call = player.heartbeat(source, items)
            fate = self.random.random() if faults else 1.0
            if fate < 0.1:
                self.late.append(call)
                self.given_up.append(call)
                continue
            reply = self.carry_out(call)
            if fate < 0.2 or isinstance(reply, HiredisError):
                continue
            for held, result in zip(items, reply, strict=True):
                if held.state != "done" and not self._is_being_settled(player, held.key):
                    self._learn(player, held, result)

    @staticmethod
    def _is_being_settled(player: Player, key: Key) -> bool:
        return player.call is not None and key in [verdict.key for verdict in player.call.verdicts]

    def _learn(self, player: Player, held: InHand, result: int) -> None:
        if result == 0:
            self.say("taken", player.name, held.number, held.entry_id)
            del player.hand[held.key]
            runs_poison = any(
                one.state == "running" and self.kinds[one.number] is Kind.POISON for one in player.hand.values()
            )
            if not runs_poison:
                player.fuse = None
        elif result == 3 and not player.call:  # rule W6
            [code] = self.run("hold", held.source, player.name, player.name, player.answered, held.entry_id, held.times)
            self.say("held again", player.name, held.number, code)
            self.counts["held"] += code
            if code == 0:
                del player.hand[held.key]

    # ---- who recovers

    @property
    def lease(self) -> str:
        """The value of the lease in this term. It is '' with embedded recovery."""
        return "" if self.setting.recovery == "embedded" else f"L{self.term}"

    def recover(self, *, stale: bool = False) -> None:
        """Recover as the holder of the lease, or as one that is it no more."""
        for source, rows in zip(self.board.sources, self.board.all_pending(), strict=True):
            due = [row[0] for row in rows if row[2] > V_MS]
            if not due:
                continue
            reply = self.run("recover", source, self.lease, 1, BUDGET, *due)
            if stale:
                self._must_be_fenced(reply)
                continue
            self._note_recovery(reply)

    def walk(self, player: Player, room: int, *, faults: bool = True) -> None:
        """Recover as an embedded worker, which claims what it has room for. Its reply may be lost."""
        is_lost = faults and self.random.random() < 0.1
        for source in self.board.sources:
            reply = self.run("recover", source, "", 0, BUDGET, player.name, "-", 50, room)
            self._note_recovery(reply)
            self.counts["claimed"] += len(reply[6])
            for (entry_id, flat), times in () if is_lost else reply[6]:
                self.gets(player, source, entry_id, flat, times)

    def _note_recovery(self, reply: Any) -> None:
        if reply[0] != b"ok" or reply[3]:
            raise BrokenError(f"recover: {reply}")
        for event in reply[4]:
            self.counts[event[1].decode()] += 1
        if reply[4]:
            self.say("recover", reply[4])

    def move_due(self, *, stale: bool = False) -> None:
        """Move what is due, and look at the gate."""
        reply = self.run("move_due", self.board.keys.stream, self.lease, 1, 10)
        if stale:
            self._must_be_fenced(reply)
            return
        if reply[0] != b"ok":
            raise BrokenError(f"move_due: {reply}")
        if reply[4]:
            self.say("released", reply[4])
            self.counts["released"] += 1

    def _must_be_fenced(self, reply: Any) -> None:
        if reply[0] != b"fenced":
            raise BrokenError(f"I3: a stale holder wrote: {reply}")
        self.counts["fenced"] += 1

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

    def change_holder(self) -> None:
        """Let the lease expire, be offered, and be taken. In the end, writes of the former holder are rejected."""
        left = self.random.choice((("DEL",), ("SET", "offer:another"), ("SET", f"L{self.term + 1}")))
        self.board.redis(left[0], self.board.lease, *left[1:])
        self.recover(stale=True)
        self.move_due(stale=True)
        self.term += 1
        self.board.redis("SET", self.board.lease, self.lease)

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
