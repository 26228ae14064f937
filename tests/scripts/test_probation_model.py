"""Probation as a whole: any interleaving of workers, crashes, settlements and recoveries, on a real server.

Time is made to pass by moving every moment that Redis knows into the past. A job is innocent where no execution of it
ended its process. Innocent jobs are never dead letters; a poison job is one after a bounded number of executions.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.support.servers import RedisServer
from tests.support.tiers import OPTION
from workers.protocol.keys import group_keys
from workers.protocol.scripts import load_script

KEYS = group_keys("orders", "billing")
FENCE = "reaper:7:alice"
VISIBILITY_MS, TICK_MS, MAX_DELIVERIES = 1_000_000, 400_000, 3
"""Long, so that the time that really passes is nothing beside them."""
INNOCENT, AT_ONCE, LATER, MUCH_LATER = "innocent", "at once", "after an extension", "after a visibility timeout"
ROUNDS = 400
"""In so many rounds without further faults everything has to end."""


@dataclass
class Delivery:
    """A job in the hands of a process."""

    job: str
    source: str
    times: int
    on_probation: bool
    lived_ms: int = 0
    extended: bool = False


@dataclass
class Process:
    """A worker process of ours. Extends what it holds whenever time passes."""

    name: str
    consumer: str
    held: dict[str, Delivery] = field(default_factory=dict)


class World:
    """One group, its jobs, and the processes that run them."""

    def __init__(self, server: RedisServer) -> None:
        self.client = redis.Redis(port=server.port, protocol=2)
        self.client.response_callbacks.clear()  # raw replies, as our own clients get them

    def begin(self, suspects: list[str], policy: str, *, embedded: bool) -> None:
        """Begin with jobs that have one delivery left, and are parked."""
        self.kinds: dict[str, str] = {}
        self.policy, self.embedded = policy, embedded
        self.fence = "" if embedded else FENCE
        self.starts: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.bad_company: set[str] = set()
        """Suspects whose process was ended by a job that was none: nobody can tell the two apart."""
        self.has_run_long = False
        self.processes: dict[str, Process] = {}
        self.dead_processes: list[Process] = []
        self._numbers = itertools.count()
        self.run("FLUSHALL")
        for key in (KEYS.stream, KEYS.retry):
            self.run("XGROUP", "CREATE", key, KEYS.group, "0", "MKSTREAM")
        self.serve(True)
        for kind in suspects:
            job, entry_id = self.enqueue(kind)
            self.run(
                "XCLAIM", KEYS.stream, KEYS.group, "w0", 0, entry_id, "IDLE", 10 * VISIBILITY_MS,
                "RETRYCOUNT", MAX_DELIVERIES - 1, "FORCE", "JUSTID", "LASTID", entry_id,
            )  # fmt: skip
            self.kills[job] = MAX_DELIVERIES - 1 if kind != INNOCENT else 0
            self.recover("w1")
        self.processes.clear()

    def enqueue(self, kind: str) -> tuple[str, bytes]:
        """Enqueue a job; return its name and its entry ID."""
        job = f"j{len(self.kinds)}"
        self.kinds[job] = kind
        return job, self.run("XADD", KEYS.stream, "*", "reaper.job", job)

    def run(self, *words: Any) -> Any:
        return self.client.execute_command(*words)

    def script(self, package: str, name: str, keys: list[str], args: list[Any]) -> Any:
        return load_script(package, name).run_blocking(self.client, keys, args)

    # ---- who looks after the group

    def serve(self, serves: bool) -> None:
        """Have the group looked after, or by nobody for a while."""
        self.serves = serves
        self.run(
            "HSET", KEYS.agreement, "policy", self.policy, "visibility_ms", VISIBILITY_MS, "max_deliveries",
            MAX_DELIVERIES, "recovery", "embedded" if self.embedded and serves else "reaper",
            "served_until", 10**14 if serves else 0, "beat", int(self.run("TIME")[0]) * 1_000, "unbroken", 1,
        )  # fmt: skip
        self.run("SET", KEYS.fence, "" if self.embedded else FENCE)

    def release(self) -> None:
        self.script(
            "workers.protocol", "release_suspects",
            [KEYS.stream, KEYS.retry, KEYS.schedule, KEYS.suspects, KEYS.fence, KEYS.agreement, KEYS.journal],
            [self.fence, KEYS.group, self.policy, 0, 1_000, 7],
        )  # fmt: skip

    def move_due(self) -> None:
        self.script(
            "workers.protocol", "move_due",
            [
                KEYS.stream, KEYS.retry, KEYS.schedule, KEYS.stream_schedule, KEYS.fence, KEYS.agreement, KEYS.journal,
            ],
            [self.fence, KEYS.group, self.policy, 0, 1_000, 7, 100, 10**9, 10**13],
        )  # fmt: skip

    def recover(self, name: str) -> None:
        for source in (KEYS.stream, KEYS.retry):
            if self.embedded:
                self._autoclaim(source, self.process(name))
                continue
            ids = [row[0] for row in self.pending(source)]
            if ids:
                self.script(
                    "reaper", "recover_entries",
                    [
                        source, KEYS.stream, KEYS.retry, KEYS.dead, KEYS.schedule, KEYS.suspects, KEYS.fence,
                        KEYS.agreement, KEYS.journal,
                    ],
                    [
                        self.fence, KEYS.group, VISIBILITY_MS, MAX_DELIVERIES, self.policy, 0, 1_000, 7, 10**9, 10**9,
                        *ids,
                    ],
                )  # fmt: skip

    def _autoclaim(self, source: str, process: Process) -> None:
        if process is not self.processes.get(process.name):
            return
        reply = self.script(
            "workers.protocol", "autoclaim",
            [
                source, KEYS.stream, KEYS.retry, KEYS.dead, KEYS.schedule, KEYS.suspects, KEYS.agreement, KEYS.journal,
            ],
            [
                KEYS.group, process.consumer, VISIBILITY_MS, MAX_DELIVERIES, self.policy, 0, 1_000, "-", 2, 0, 500,
                10**9, 1_000,
            ],
        )  # fmt: skip
        assert reply[0] == b"ok", reply
        self._start(process, [(source, *row[:3]) for row in reply[8]])

    # ---- processes

    def process(self, name: str) -> Process:
        """Return the process of this name; it is started where it does not run."""
        if name not in self.processes:
            self.processes[name] = Process(name, f"{name}.{next(self._numbers)}")
        return self.processes[name]

    def read(self, name: str, count: int) -> None:
        process = self.process(name)
        reply = self.run(
            "XREADGROUP", "GROUP", KEYS.group, process.consumer, "COUNT", count, "STREAMS", KEYS.stream, KEYS.retry,
            ">", ">",
        )  # fmt: skip
        self._start(
            process, [(source.decode(), one, 1, flat) for source, entries in reply or () for one, flat in entries]
        )

    def _start(self, process: Process, deliveries: list[Any]) -> None:
        for source, entry_id, times, flat in deliveries:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            delivery = Delivery(fields[b"reaper.job"].decode(), source, times, b"reaper.suspect" in fields)
            process.held[entry_id.decode()] = delivery
            self.starts[delivery.job] += 1
        self._kill(process)

    def _kill(self, process: Process) -> None:
        """End the process where a job that it runs does."""
        for delivery in process.held.values():
            kind = self.kinds[delivery.job]
            self.has_run_long |= delivery.lived_ms >= VISIBILITY_MS
            if (
                kind == AT_ONCE
                or (kind == LATER and delivery.extended)
                or (kind == MUCH_LATER and delivery.lived_ms > 1.5 * VISIBILITY_MS)
            ):
                self.kills[delivery.job] += 1
                if not delivery.on_probation:
                    self.bad_company |= {other.job for other in process.held.values() if other.on_probation}
                self.crash(process.name)
                return

    def crash(self, name: str) -> None:
        process = self.processes.pop(name)
        self.dead_processes.append(process)

    def stop(self, name: str) -> None:
        """SIGTERM: what does not end in time is handed back."""
        process = self.processes.pop(name)
        self.settle(process, dict.fromkeys(process.held, "hand_back"))

    def adopt(self) -> None:
        """A successor takes over what the process that died last held."""
        old = self.dead_processes.pop()
        process = self.process(old.name)
        for source in (KEYS.stream, KEYS.retry):
            if process is not self.processes.get(process.name):
                self.dead_processes.append(old)  # its next successor goes on
                return
            reply = self.script(
                "workers.protocol", "adopt",
                [
                    source, KEYS.dead, KEYS.agreement, KEYS.journal, KEYS.stream, KEYS.suspects, KEYS.schedule,
                    KEYS.retry,
                ],
                [
                    KEYS.group, process.consumer, old.consumer, "restart", 100, 0, MAX_DELIVERIES, self.policy, 0,
                    1_000, "-",
                ],
            )  # fmt: skip
            assert reply[1] == 0, "suspects are parked where somebody lets them out"
            self._start(process, [(source, *row[:3]) for row in reply[4]])

    def settle(self, process: Process, verbs: dict[str, str]) -> None:
        for source in (KEYS.stream, KEYS.retry):
            words: list[Any] = []
            for entry_id in sorted(verbs):
                delivery = process.held.get(entry_id)
                if delivery is None or delivery.source != source:
                    continue
                verb, _, delay = verbs[entry_id].partition(" ")
                words += [verb, delivery.times, 1, entry_id, delivery.job, "{}"]
                words += [] if verb == "ack" else ["down", "", delay, ""]
                del process.held[entry_id]
            if words:
                self.script(
                    "workers.protocol", "settle",
                    [
                        source, KEYS.stream, KEYS.retry, KEYS.dead, KEYS.agreement, KEYS.journal, KEYS.schedule,
                        KEYS.suspects,
                    ],
                    [KEYS.group, process.consumer, MAX_DELIVERIES, self.policy, 0, 1_000, 0, 0, *words],
                )  # fmt: skip

    # ---- time

    def tick(self) -> None:
        """Let time pass: living processes extend what they hold, and some jobs end theirs now."""
        for source in (KEYS.stream, KEYS.retry):
            for entry_id, consumer, idle, times in self.pending(source):
                self.run(
                    "XCLAIM", source, KEYS.group, consumer, 0, entry_id, "IDLE", idle + TICK_MS, "RETRYCOUNT", times,
                    "JUSTID",
                )  # fmt: skip
        for entry_id, value in self.hash():
            kind, *numbers = value.rstrip("!").split(",")
            if len(numbers) == 3:
                numbers[2] = str(int(numbers[2]) - TICK_MS)
                mark = "!" * value.endswith("!")
                self.run("HSET", KEYS.suspects, entry_id, ",".join([kind, *numbers]) + mark)
        for member, score in pairs(self.run("ZRANGE", KEYS.schedule, 0, -1, "WITHSCORES")):
            if float(score) < 2**52:
                self.run("ZADD", KEYS.schedule, float(score) - TICK_MS, member)
        for process in list(self.processes.values()):
            self._extend(process)

    def _extend(self, process: Process) -> None:
        for source in (KEYS.stream, KEYS.retry):
            held = [one for one in sorted(process.held) if process.held[one].source == source]
            items = [word for one in held for word in (one, process.held[one].times)]
            if items:
                results = self.script(
                    "workers.protocol", "extend_visibility", [source, KEYS.journal],
                    [KEYS.group, process.consumer, *items],
                )  # fmt: skip
                assert set(results) == {1}, "nothing is taken from a process that lives"
        for delivery in process.held.values():
            delivery.lived_ms += TICK_MS
            delivery.extended = True
        self._kill(process)

    # ---- what there is

    def pending(self, source: str) -> list[Any]:
        rows: list[Any] = self.run("XPENDING", source, KEYS.group, "-", "+", 1_000)
        return rows

    def hash(self) -> list[tuple[bytes, str]]:
        return [(name, value.decode()) for name, value in pairs(self.run("HGETALL", KEYS.suspects))]

    def dead_letters(self) -> list[str]:
        entries = self.run("XRANGE", KEYS.dead, "-", "+")
        return [dict(pairs(flat))[b"reaper.job"].decode() for _, flat in entries]

    def check(self) -> None:
        """Fail where something is that must not be."""
        problems = self.problems()
        assert not problems, f"{problems}, {self.kinds}, kills {dict(self.kills)}, dead {self.dead_letters()}"

    def problems(self) -> list[str]:
        """Return what must not be."""
        dead = self.dead_letters()
        problems = [f"{job} is innocent and dead" for job in dead if self.kinds[job] == INNOCENT]
        problems = [one for one in problems if one.split()[0] not in self.bad_company]
        problems += [f"{job} has several dead letters" for job, times in Counter(dead).items() if times > 1]
        most = MAX_DELIVERIES + 1 + self.has_run_long
        problems += [f"{job} has ended {times} processes" for job, times in self.kills.items() if times > most]
        return problems


def pairs(flat: Any) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


KINDS = (INNOCENT, INNOCENT, INNOCENT, AT_ONCE, LATER, MUCH_LATER)
MOST_JOBS = 9
NAMES = st.sampled_from(("w1", "w2"))
VERBS = st.sampled_from(("ack", "ack", "hand_back", "retry 0", "retry 500000", ""))


class Group(RuleBasedStateMachine):
    """What may happen to a group, in any order."""

    world: World

    @initialize(
        suspects=st.lists(st.sampled_from(KINDS), min_size=2, max_size=6),
        policy=st.sampled_from(("stream", "retry-stream")),
        embedded=st.booleans(),
    )
    def begin(self, suspects: list[str], policy: str, embedded: bool) -> None:
        self.world.begin(suspects, policy, embedded=embedded)

    @precondition(lambda self: len(self.world.kinds) < MOST_JOBS)
    @rule(kind=st.sampled_from(KINDS))
    def a_job_is_enqueued(self, kind: str) -> None:
        self.world.enqueue(kind)

    @rule(name=NAMES, count=st.integers(1, 5))
    def somebody_reads(self, name: str, count: int) -> None:
        self.world.read(name, count)

    @rule(name=NAMES, verbs=st.lists(VERBS, min_size=1, max_size=5))
    def somebody_settles(self, name: str, verbs: list[str]) -> None:
        process = self.world.process(name)
        chosen = {
            entry_id: verb
            for (entry_id, delivery), verb in zip(process.held.items(), verbs, strict=False)
            if verb and (verb != "ack" or self.world.kinds[delivery.job] == INNOCENT)
        }
        self.world.settle(process, chosen)

    @rule(name=NAMES)
    def somebody_is_stopped(self, name: str) -> None:
        if name in self.world.processes:
            self.world.stop(name)

    @rule(ticks=st.integers(1, 4))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.world.tick()

    @precondition(lambda self: self.world.serves)
    @rule(name=NAMES)
    def the_group_is_looked_after(self, name: str) -> None:
        self.world.recover(name)
        self.world.move_due()
        self.world.release()

    @precondition(lambda self: self.world.serves)
    @rule(name=NAMES)
    def a_suspect_is_let_out_and_read(self, name: str) -> None:
        self.world.release()
        self.world.read(name, 5)

    @precondition(lambda self: self.world.serves)
    @rule()
    def a_successor_adopts(self) -> None:
        if self.world.dead_processes:
            self.world.adopt()

    @rule(serves=st.sampled_from((True, True, False)))
    def nobody_looks_after_the_group_for_a_while(self, serves: bool) -> None:
        self.world.serve(serves)

    def teardown(self) -> None:
        """Without further faults everything ends: innocent jobs are done, poison jobs are given up."""
        world = self.world
        world.check()
        world.serve(True)
        for _ in range(ROUNDS):
            world.release()
            world.move_due()
            world.read("w1", 3)
            world.tick()
            world.release()
            process = world.process("w1")
            done = [one for one, held in process.held.items() if world.kinds[held.job] == INNOCENT and held.extended]
            world.settle(process, dict.fromkeys(done, "ack"))
            for other in set(world.processes) - {"w1"}:
                world.stop(other)
            world.recover("w1")
            world.check()
            if not any(map(world.run, ("ZCARD", "HLEN"), (KEYS.schedule, KEYS.suspects))) and self.nothing_is_left():
                break
        else:
            pytest.fail(f"it never ends: {world.kinds}, {world.starts}, {world.hash()}")
        dead = set(world.dead_letters())
        assert {job for job, kind in world.kinds.items() if kind != INNOCENT} <= dead

    def nothing_is_left(self) -> bool:
        """Tell whether no job is pending or ready."""
        for source in (KEYS.stream, KEYS.retry):
            [info] = self.world.run("XINFO", "GROUPS", source)
            last = dict(pairs(info))[b"last-delivered-id"]
            if self.world.pending(source) or self.world.run("XRANGE", source, b"(" + last, "+", "COUNT", 1):
                return False
        return True


def test_no_innocent_is_given_up_every_poison_job_is_and_everything_ends(
    server: RedisServer, pytestconfig: pytest.Config
) -> None:
    machine = type("GroupOnServer", (Group,), {"world": World(server)})
    examples = 200 if pytestconfig.getoption(OPTION) else 25
    run_state_machine_as_test(
        machine, settings=hypothesis.settings(max_examples=examples, stateful_step_count=40, report_multiple_bugs=False)
    )
