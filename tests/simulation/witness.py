"""Sees every write, and judges at once the jobs that the command or script touched.

Rules that hold at any moment are judged here, by the one judge (`reaper/drill/promises.py`). Its history of a job is
the job's place, the journal's events of it, and the notes of executions so far. A violation is reported with the step
that caused it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from reaper.drill.history import dead_job
from reaper.drill.promises import (
    DeadJob,
    Execution,
    FinalState,
    History,
    check_now,
    gives_a_delivery_back,
)
from tests.simulation.places import GROUP, KEYS
from tests.simulation.reached import Moment
from tests.simulation.server.cmsgpack import Unpacker
from tests.simulation.server.keyspace import Keyspace
from tests.simulation.server.ranking import SortedSet
from tests.simulation.server.replies import Reply
from tests.simulation.server.streams import Stream
from tests.simulation.server.words import entry_id as number_of
from tests.simulation.server.words import id_text
from tests.simulation.tenancy import Tenancy
from workers.protocol.events import LifecycleEvent, decode_entry
from workers.protocol.messages import CLAIM_READY_MS, pair_up, read_metadata, text

if TYPE_CHECKING:
    from tests.simulation.world import World

STREAM, RETRY, DEAD, JOURNAL = (key.encode() for key in (KEYS.stream, KEYS.retry, KEYS.dead, KEYS.journal))
SCHEDULES = frozenset({KEYS.schedule.encode(), KEYS.stream_schedule.encode()})
SOURCES = frozenset({STREAM, RETRY})
ENTRIES = frozenset({STREAM, RETRY, DEAD})

Place = tuple[bytes, int]
"""A stream's key, and an entry's ID."""


@dataclass(slots=True)
class Life:
    """The knowledge of one job."""

    entries: set[Place] = field(default_factory=set)
    """Entries of the two streams that there ever were: whether one is ready or pending, the server says."""
    members: set[tuple[bytes, bytes]] = field(default_factory=set)
    """Members of schedules, in the same way."""
    letters: dict[int, DeadJob] = field(default_factory=dict)
    events: list[LifecycleEvent] = field(default_factory=list)
    starts: list[Execution] = field(default_factory=list)
    completions: list[Execution] = field(default_factory=list)
    endings: list[Execution] = field(default_factory=list)


class Witness:
    """Sees what the server of a world does."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._lives: defaultdict[str, Life] = defaultdict(Life)
        self._jobs: dict[Place, str] = {}
        self._named: dict[Place, str] = {}
        """The job that had an entry ID first. After a loss, a server whose clock is behind gives an ID out again."""
        self._is_reading_anew = False
        self._touched: dict[str, None] = {}
        self._moved: dict[Place, None] = {}
        self._claimed_at: dict[Place, float] = {}
        """When a delivery was claimed last, in seconds of the story."""
        self.untold: list[LifecycleEvent] = []
        """What the journal would tell of deliveries that were given back, had somebody been allowed to write it."""
        self._seen = [0, 0, 0]
        self.tenancy = Tenancy(world)
        self.caller = ""
        """Whose command runs; '' where it is nobody's."""
        self.steps = 0

    @property
    def when(self) -> str:
        """The step, in words."""
        return f"at {self._world.loop.now:.6f} s, by {self.caller or 'nobody'}"

    # ---- what happens

    def wrote(self, words: Sequence[bytes], reply: Reply) -> None:
        """Note one write, a script's own ones among them."""
        handler = _HANDLERS.get(words[0].upper())
        if handler is not None:
            handler(self, words, reply)
        self.tenancy.wrote(words, reply)

    def was_not_allowed(self, words: Sequence[bytes]) -> None:
        """Note an event that a script would have written, because effects go on without the journal (it is written by
        ``pcall``)."""
        if words[0].upper() != b"XADD" or words[1] != JOURNAL:
            return
        fields = words[words.index(b"event") :]
        for event in decode_entry(id_text(self._world.server.now_ms << 64), fields):
            if event.data.get("group") == GROUP and gives_a_delivery_back(event):
                # Without a token, the order of terms is unknown.
                its_data = {name: value for name, value in event.data.items() if name != "token"}
                self.untold.append(replace(event, data=its_data))
                self._lives[event.job].events.append(self.untold[-1])

    def begin_anew(self) -> None:
        """Look at everything, because the server has lost its last writes, or is another one."""
        self._lives.clear()
        self._jobs.clear()
        self._touched.clear()
        self._moved.clear()
        self._claimed_at.clear()
        self._seen = [0, 0, 0]
        values, self._is_reading_anew = self._keys.values, True
        for key in (*ENTRIES, JOURNAL):
            stream = values.get(key)
            if isinstance(stream, Stream):
                for number in stream.entries.ids:
                    self._added(key, number)
        for key in SCHEDULES:
            schedule = values.get(key)
            if isinstance(schedule, SortedSet):
                for member in schedule.scores:
                    self._scheduled(key, member)
        self._touched.clear()
        self._is_reading_anew = False
        self.tenancy.begin_anew()

    def step_over(self) -> None:
        """Judge what a command, or a script as a whole, has done."""
        self.steps += 1
        self.tenancy.step_over(self.caller, self.when)
        if self._moved:
            self._judge_owners()
        if not self._touched:
            return
        touched, self._touched = self._touched, {}
        self._hear_ledger()
        for job in touched:
            for sentence in self._judge(job):
                self._world.findings.add(sentence, self.when)

    def events_of(self, job: str) -> list[LifecycleEvent]:
        """Return the journal's events of a job, oldest first."""
        return self._lives[job].events

    # ---- writes

    @property
    def _keys(self) -> Keyspace:
        return self._world.server.keys

    def _stream(self, key: bytes) -> Stream | None:
        found = self._keys.values.get(key)
        return found if isinstance(found, Stream) else None

    def _add(self, words: Sequence[bytes], reply: Reply) -> None:
        key = words[1]
        if isinstance(reply, bytes) and (key in ENTRIES or key == JOURNAL):
            self._added(key, number_of(reply))

    def _added(self, key: bytes, number: int) -> None:
        stream = self._stream(key)
        assert stream is not None
        flat: Any = stream.entries.values[number][1]
        if key == JOURNAL:
            for event in decode_entry(id_text(number), flat):
                self._told(event)
            return
        job = text(read_metadata(id_text(number), pair_up(flat)).job_id)
        self._jobs[key, number] = job
        self._touched[job] = None
        if self._named.setdefault((key, number), job) != job:
            self._world.ledger.lost.add(job)  # a worker that still runs the lost job can settle this one
        if key == DEAD:
            self._lives[job].letters[number] = dead_job((id_text(number), flat))
        else:
            self._lives[job].entries.add((key, number))

    def _told(self, event: LifecycleEvent) -> None:
        if event.data.get("group") != GROUP or not event.job:
            return
        self._touched[event.job] = None
        self._lives[event.job].events.append(event)
        if not self._is_reading_anew:
            self._world.note(f"event {event.event}", Moment(self.caller, event=event))
            self.tenancy.told(event, self.when)

    def _acknowledged(self, words: Sequence[bytes], reply: Reply) -> None:  # noqa: ARG002
        self._touch_entries(words[1], words[3:])

    def _deleted(self, words: Sequence[bytes], reply: Reply) -> None:  # noqa: ARG002
        self._touch_entries(words[1], words[2:])

    def _claimed(self, words: Sequence[bytes], reply: Reply) -> None:
        rows: Any = reply[1] if words[0].upper() == b"XAUTOCLAIM" else reply  # type: ignore[index]
        ids = [row[0] if isinstance(row, list) else row for row in rows if row]
        self._touch_entries(words[1], ids)
        self._claimed_at.update(((words[1], number_of(entry_id)), self._world.loop.now) for entry_id in ids)

    def claimed_ago_s(self, key: bytes, entry_id: bytes) -> float:
        """Return the time since the last claim of a delivery.

        One that is laid aside shows another idle time (46 days).
        """
        return self._world.loop.now - self._claimed_at.get((key, number_of(entry_id)), -inf)

    def _touch_entries(self, key: bytes, ids: Iterable[bytes]) -> None:
        for entry_id in ids:
            place = key, number_of(entry_id)
            if place in self._jobs:
                self._touched[self._jobs[place]] = None
                if key in SOURCES:
                    self._moved[place] = None

    def _put_members(self, words: Sequence[bytes], reply: Reply) -> None:  # noqa: ARG002
        if words[1] in SCHEDULES:
            for member in words[3::2] if words[0].upper() == b"ZADD" else words[2:]:
                if len(member) > 1:
                    self._scheduled(words[1], member)

    def _scheduled(self, key: bytes, member: bytes) -> None:
        name = self._job_of(member)
        self._touched[name] = None
        self._lives[name].members.add((key, member))

    def _job_of(self, member: bytes) -> str:
        [job] = Unpacker(member, _nothing, dict).all_values()
        return text(job[b"job_id"])

    def _all_moved(self, words: Sequence[bytes], reply: Reply) -> None:  # noqa: ARG002
        self._touched.update(dict.fromkeys(self._lives))

    # ---- judgement

    def _hear_ledger(self) -> None:
        ledger = self._world.ledger
        lists = (ledger.starts, ledger.completions, ledger.endings)
        for number, noted in enumerate(lists):
            for execution in noted[self._seen[number] :]:
                life = self._lives[execution.job]
                (life.starts, life.completions, life.endings)[number].append(execution)
            self._seen[number] = len(noted)

    def _places(self, life: Life) -> FinalState:
        ready: list[str] = []
        pending: list[str] = []
        for key, number in life.entries:
            stream = self._stream(key)
            if stream is None:
                continue
            group, job = stream.groups.get(GROUP.encode()), self._jobs[key, number]
            if group is not None and number in group.pending:
                row = group.pending.values[number]
                if row.consumer is None or self._world.server.now_ms - row.delivered_ms >= CLAIM_READY_MS:
                    ready.append(job)
                else:
                    pending.append(job)
            elif number in stream.entries and (group is None or number > group.last_id):
                ready.append(job)
        values = self._keys.values
        scheduled = [
            ""
            for key, member in life.members
            if isinstance(found := values.get(key), SortedSet) and member in found.scores
        ]
        dead = self._stream(DEAD)
        letters = [letter for number, letter in life.letters.items() if dead is not None and number in dead.entries]
        return FinalState(tuple(ready), tuple(pending), tuple(scheduled), tuple(letters))

    def is_nowhere(self, job: str) -> bool:
        """Tell whether a job is neither ready, pending, scheduled nor dead now."""
        state = self._places(self._lives[job])
        return not (state.ready or state.pending or state.scheduled or state.dead)

    def _judge(self, job: str) -> Iterator[str]:
        world, life = self._world, self._lives[job]
        ledger = world.ledger
        if not (life.entries or life.members or life.letters) or job in ledger.lost or job in ledger.dropped:
            return
        state = self._places(life)
        state = replace(state, scheduled=(job,) * len(state.scheduled))
        payload = ledger.enqueued.get(job) or ledger.payloads.get(job)
        if payload is None:
            payload = next((list(letter.payload) for letter in state.dead), [])
        history = History(
            enqueued={job: payload},
            state=state,
            events=life.events,
            starts=life.starts,
            completions=life.completions,
            endings=life.endings,
            visibility_ms=round(max(world.visibilities) * 1000),
            max_deliveries=max(world.limits),
            least_deliveries=min(world.limits),
            counts_kept=world.losses.counts_kept,
            ends_kept=not world.losses.of_ends,
            lost_deliveries=world.losses.of_deliveries,
        )
        yield from check_now(history)

    def _judge_owners(self) -> None:
        """Look for a worker of ours that still believes, by a valid registration, to hold a delivery that is another's
        now."""
        moved, self._moved = self._moved, {}
        world = self._world
        for key, number in moved:
            if self._named.get((key, number)) != self._jobs.get((key, number)):
                continue
            stream = self._stream(key)
            group = stream.groups.get(GROUP.encode()) if stream is not None else None
            row = group.pending.get(number) if group is not None else None
            holder = row.consumer.name if row is not None and row.consumer is not None else b""
            for actor in world.actors.values():
                for sentence in actor.robbed(key, id_text(number), holder):
                    world.findings.add(sentence, self.when)


def _nothing(values: list[Any]) -> list[Any]:
    return values


_HANDLERS: dict[bytes, Callable[[Witness, Sequence[bytes], Reply], None]] = {
    b"XADD": Witness._add,
    b"XACK": Witness._acknowledged,
    b"XDEL": Witness._deleted,
    b"XCLAIM": Witness._claimed,
    b"XAUTOCLAIM": Witness._claimed,
    b"ZADD": Witness._put_members,
    b"ZREM": Witness._put_members,
    b"XTRIM": Witness._all_moved,
    b"XGROUP": Witness._all_moved,
    b"DEL": Witness._all_moved,
    b"UNLINK": Witness._all_moved,
}
