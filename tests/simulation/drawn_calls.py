"""Random calls of the scripts, with arguments as workers and holders send them, drawn from the state of the model.

A caller knows the pending deliveries, the lease and the group settings as they are, or as they were a while ago.
"""

from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from tests.simulation.drawn_commands import FAULTS, Step, run, weighted
from tests.simulation.server.streams import Stream
from tests.simulation.server.words import id_text
from tests.simulation.twins import Twins
from tests.simulation.wire import Word
from workers.protocol.keys import group_keys, namespace_keys, stream_keys
from workers.protocol.scripts import load_script

KEYS, STREAM_KEYS, SPACE = group_keys("orders", "billing"), stream_keys("orders"), namespace_keys("reaper")
GROUP = KEYS.group
CONSUMERS = ("w1~0123456789ab", "w2~0123456789ab", "bare")
POLICIES = ("stream", "retry-stream")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VISIBILITY_MS = (20, 50)
Row = tuple[str, str, int]
ItemT = TypeVar("ItemT")


class Scene:
    """The knowledge of a caller, and its calls."""

    def __init__(self, twins: Twins, seed: int) -> None:
        self.twins = twins
        self.random = Random(seed)
        self.connection = self.random.randrange(3)

    def call(self, name: str, keys: tuple[str, ...], *words: Word, package: str = "workers.protocol") -> None:
        """Run a script on both servers."""
        self.twins.call(self.connection, load_script(package, name), keys, words)

    def lead(self, name: str, keys: tuple[str, ...], *words: Word) -> None:
        """Run a script of the reaper on both servers."""
        self.call(name, keys, *words, package="reaper")

    def command(self, *words: Word) -> None:
        """Run a command on both servers."""
        self.twins.run(self.connection, *words)

    # ---- the knowledge of a caller
    def source(self) -> str:
        """Return one of the streams that the group reads."""
        return self.random.choice((KEYS.stream, KEYS.stream, KEYS.retry))

    def stream(self, key: str) -> Stream | None:
        """Return a stream of the model."""
        found = self.twins.fake.model.keys.values.get(key.encode())
        return found if isinstance(found, Stream) else None

    def entries(self, key: str) -> list[str]:
        """Return some IDs of a stream's entries."""
        found = self.stream(key)
        return self.some([id_text(number).decode() for number in found.entries.ids]) if found else []

    def pending(self, key: str) -> list[Row]:
        """Return some pending entries, in order: ID, consumer, count."""
        found = self.stream(key)
        group = found.groups.get(GROUP.encode()) if found else None
        rows = [
            (id_text(number).decode(), row.consumer.name.decode() if row.consumer else "", row.times)
            for number, row in (sorted(group.pending.values.items()) if group else ())
        ]
        return self.some(rows)

    def some(self, items: list[ItemT]) -> list[ItemT]:
        """Return some of the items in order, and usually all."""
        return [item for item in items if self.random.random() < 0.7]

    def hash_value(self, key: str, field: str) -> str:
        """Return a field of a hash, or ''."""
        found = self.twins.fake.model.keys.values.get(key.encode())
        return found.get(field.encode(), b"").decode() if isinstance(found, dict) else ""

    def fence(self) -> str:
        """Return the lease, or sometimes another one."""
        found = self.twins.fake.model.keys.values.get(KEYS.lease.encode())
        return (
            found.decode()
            if isinstance(found, bytes) and self.random.random() < 0.9
            else self.random.choice(("", "x:1:y"))
        )

    def now_ms(self) -> int:
        """Return the time."""
        return self.twins.now_us // 1000

    def visibility(self) -> int:
        """Return a visibility timeout."""
        return self.random.choice(VISIBILITY_MS)

    def policy(self) -> str:
        """Return a policy."""
        return self.random.choice(POLICIES)

    def consumer(self) -> str:
        """Return a consumer's name."""
        return self.random.choice(CONSUMERS)

    def limit(self) -> int:
        """Return a max_deliveries."""
        return self.random.choice((1, 2, 3, 3))


def add(scene: Scene) -> None:
    """A bare producer adds jobs, some with a job ID."""
    extra = scene.random.choice(
        (
            (),
            (),
            ("traceparent", TRACEPARENT),
            ("reaper.deliveries", 1),
            ("reaper.visibility_ms", 100),
            ("reaper.quarantined", 1),
        )
    )
    scene.command(
        "XADD",
        scene.source() if scene.random.random() < 0.1 else KEYS.stream,
        "*",
        "n",
        scene.random.randrange(9),
        *extra,
    )


def enqueue(scene: Scene) -> None:
    """A producer of stream-reaper enqueues jobs."""
    jobs: list[Word] = []
    for number in range(scene.random.randrange(1, 4)):
        delay = scene.random.choice((0, 0, 10, 5000))
        jobs += [
            f"job-{scene.random.randrange(6)}",
            scene.random.randrange(2),
            delay,
            2,
            "n",
            scene.random.choice((number, "y" * 40)),
        ]
    call = scene.random.choice(("", "c1", "c2"))
    scene.call("enqueue", (STREAM_KEYS.stream, STREAM_KEYS.schedule, STREAM_KEYS.enqueued), call, 1000, 500, *jobs)


def join(scene: Scene) -> None:
    """A worker joins."""
    mode, policy, consumer = (
        scene.random.choice(("reaper", "embedded")),
        scene.policy(),
        scene.consumer(),
    )
    scene.call(
        "join_group", (KEYS.stream, KEYS.retry, KEYS.settings, KEYS.lease), GROUP, "0",
        scene.random.choice(("", policy)), scene.random.choice(("", scene.visibility())),
        scene.random.choice(("", scene.limit())), mode, policy, scene.visibility(), scene.limit(), mode, "w", consumer,
        60, scene.random.choice(("0", "1")),
    )  # fmt: skip


def read(scene: Scene) -> None:
    """A worker reads."""
    sources = [
        key for key in (KEYS.stream, KEYS.retry) if (found := scene.stream(key)) and GROUP.encode() in found.groups
    ]
    if sources:
        block = scene.random.choice(((), (), ("BLOCK", 30)))
        scene.command(
            "XREADGROUP", "GROUP", GROUP, scene.consumer(), "COUNT", scene.random.randrange(1, 4), *block,
            "STREAMS", *sources, *(">" for _ in sources),
        )  # fmt: skip


def _mine(scene: Scene) -> tuple[str, str, list[Row]]:
    source = scene.source()
    rows = scene.pending(source)
    consumer = scene.random.choice([row[1] for row in rows] or [*CONSUMERS])
    mine = [row for row in rows if row[1] == consumer or scene.random.random() < 0.1]
    return source, consumer, [(row[0], row[1], row[2] + (scene.random.random() < 0.05)) for row in mine]


def _names(source: str) -> tuple[str, ...]:
    return (
        source, KEYS.stream, KEYS.retry, KEYS.dead, KEYS.settings, KEYS.schedule, KEYS.quarantine, KEYS.journal,
    )  # fmt: skip


def ack(scene: Scene) -> None:
    """A worker acknowledges jobs."""
    source, consumer, rows = _mine(scene)
    ids = [row[0] for row in rows[:4]]
    number, deletes = scene.random.randrange(1, 9), scene.random.randrange(2)
    words: tuple[Word, ...] = (consumer, "caller", number, deletes, len(ids), *ids, "run_ms", 5)
    scene.call("ack", _names(source), GROUP, 50, *words)


def settle(scene: Scene) -> None:
    """A worker settles deliveries in other ways."""
    source, consumer, rows = _mine(scene)
    words: list[Word] = []
    for entry_id, _, times in rows[:4]:
        verb = scene.random.choice(("nack", "retry", "hand_back", "reject"))
        delay = scene.random.choice((0, 10, 4000))
        words += [verb, entry_id, times, delay, "failed", "ValueError: x", scene.random.choice(("", "trace")), 0]
    scene.call("settle", _names(source), GROUP, 50, consumer, "caller", scene.random.randrange(1, 9), *words)


def extend(scene: Scene) -> None:
    """A worker sends a heartbeat."""
    source, consumer, rows = _mine(scene)
    words = [word for entry_id, _, times in rows for word in (entry_id, times, scene.random.randrange(3))]
    scene.call("extend", _names(source), GROUP, 50, consumer, *words)


def hold(scene: Scene) -> None:
    """A worker restores deleted deliveries."""
    source, consumer, rows = _mine(scene)
    held = rows or [(entry_id, consumer, 1) for entry_id in scene.entries(source)]
    words = [word for entry_id, _, times in held for word in (entry_id, times)]
    scene.call("hold", _names(source), GROUP, 50, consumer, "caller", scene.random.randrange(9), *words)


def return_taken(scene: Scene) -> None:
    """A worker returns deliveries that a read took from live workers."""
    source, consumer, rows = _mine(scene)
    words = [word for entry_id, _, times in rows for word in (entry_id, times - 1)]
    scene.call("return_taken", (source,), GROUP, consumer, *words)


def adopt(scene: Scene) -> None:
    """A worker looks for its own deliveries."""
    source, consumer, rows = _mine(scene)
    in_hand = [row[0] for row in rows[:1]]
    scene.call("adopt", _names(source), GROUP, 50, consumer, scene.random.choice((0, 1, 10)), "-", *in_hand)


def walk(scene: Scene) -> None:
    """An embedded worker recovers."""
    words = "", 0, 100_000, scene.consumer(), scene.random.choice((0, 1, 10)), "-", scene.random.choice((2, 100))
    scene.call("recover", (*_names(scene.source()), KEYS.lease), GROUP, 50, *words)


def recover(scene: Scene) -> None:
    """A holder recovers."""
    source = scene.source()
    words: tuple[Word, ...] = scene.fence(), 1, 100_000, *(row[0] for row in scene.pending(source))
    scene.call("recover", (*_names(source), KEYS.lease), GROUP, 50, *words)


def take_over(scene: Scene) -> None:
    """A replica takes the lease."""
    token = scene.random.choice((1, 1, 1, 2))
    scene.lead(
        "lease_take", (*_names(KEYS.stream), KEYS.lease), GROUP, 50,
        f"alice.{token:02x}@1000", 1000, "alice", scene.policy(), scene.visibility(), scene.limit(),
        0,
    )  # fmt: skip


def _own(scene: Scene) -> str:
    return "" if scene.hash_value(KEYS.settings, "recovery") == "embedded" else scene.fence()


def tick(scene: Scene) -> None:
    """Make due jobs ready, and release a quarantined job."""
    words = _own(scene), 1, 10, scene.random.choice(("", 1000))
    scene.call("move_due", (*_names(KEYS.stream), KEYS.lease, KEYS.stream_schedule), GROUP, 50, *words)


def maintain(scene: Scene) -> None:
    """Run maintenance."""
    words = GROUP, 50, _own(scene), 1, scene.random.choice(("", 40))
    scene.call("maintain_group", (*_names(KEYS.stream), KEYS.lease), *words)


def report_lost(scene: Scene) -> None:
    """A holder reports the deliveries of a consumer that a third party deleted."""
    source = scene.random.choice((KEYS.stream, KEYS.retry))
    words = scene.fence(), 7, scene.random.choice(CONSUMERS), scene.random.randrange(2)
    scene.lead("report_lost", (*_names(source), KEYS.lease), GROUP, 1000, *words, *scene.entries(source))


def operate(scene: Scene) -> None:
    """An operator runs a command."""
    scene.random.choice((_redrive, _requeue, _pause, _forget, _look, _find))(scene)


def _requeue(scene: Scene) -> None:
    source = scene.random.choice((KEYS.stream, KEYS.retry))
    words = (GROUP, 50, "stream", scene.random.randrange(2), 100_000, "")
    scene.lead("ready_again", _names(source), *words, *scene.entries(source))


def _redrive(scene: Scene) -> None:
    words = (GROUP, 50, "stream", scene.random.randrange(2), 100_000, 3)
    scene.lead("ready_again", _names(KEYS.dead), *words, *scene.entries(KEYS.dead))


def _pause(scene: Scene) -> None:
    scene.lead("pause_group", (KEYS.settings,), scene.random.choice((1, 0, 0)))


def _forget(scene: Scene) -> None:
    scene.lead("forget_group", (*_names(KEYS.stream), KEYS.lease), GROUP, 50, "stream", 100_000)


def _look(scene: Scene) -> None:
    keys = (KEYS.stream, KEYS.retry, KEYS.schedule, KEYS.stream_schedule, KEYS.quarantine, KEYS.dead, KEYS.settings)
    scene.call("look_at_group", keys, GROUP)
    scene.lead("count_after", (KEYS.stream,), "0-0", 100, 10_000)
    scene.lead("inspect_layout", (KEYS.stream,), "stream")


def _find(scene: Scene) -> None:
    scene.lead("find_scheduled", (scene.random.choice((KEYS.schedule, KEYS.stream_schedule)),), "job-1", 0, 100)


def elect(scene: Scene) -> None:
    """Replicas use their lease."""
    replica, what = scene.random.choice(("alice", "bob")), scene.random.randrange(6)
    keys: tuple[str, ...]
    holder = f"{replica}.{scene.random.choice(('0a', '0b'))}@40"
    match what:
        case 0 | 1:
            keys = (
                KEYS.stream, KEYS.settings, KEYS.journal, KEYS.retry, KEYS.lease, KEYS.schedule, KEYS.stream_schedule,
            )  # fmt: skip
            scene.lead("tick", keys, holder, 40, GROUP, "-", scene.random.choice(("", "-")), 10)
        case 2 | 3:
            keys = (KEYS.lease, KEYS.settings, KEYS.journal)
            scene.lead("lease_hand", keys, holder, scene.random.choice(("", "bob")), 60, GROUP, "stopped", "1", 50)
        case 4:
            by_person, pattern = scene.random.choice((("0", "a*"), ("1", "")))
            added = scene.random.choice(((), ("a/b", pattern)))
            scene.lead("watch", (SPACE.watched,), by_person, len(added) // 2, *added, "a/c")
        case _:
            keys = (SPACE.replicas, SPACE.live, SPACE.drained, SPACE.groups, SPACE.watched, SPACE.scanned)
            word, groups = scene.random.choice(("", '{"v":1}')), scene.random.choice(("", "a/b"))
            scene.lead("register", keys, "0a", replica, word, 40, 60, groups, scene.random.choice(("", 50)), "0")


def tell(scene: Scene) -> None:
    """A worker reports and cleans up."""
    scene.call("delete_consumer", (scene.source(), KEYS.settings), GROUP, *scene.some([*CONSUMERS]))


def disturb(scene: Scene) -> None:
    """A third party runs commands."""
    source = scene.source()
    ids = scene.entries(source)
    words: tuple[Word, ...] = scene.random.choice(
        (
            ("XDEL", source, *(ids[:2] or ["1-1"])), ("XTRIM", source, "MAXLEN", 2),
            ("XGROUP", "DESTROY", source, GROUP),
            ("XGROUP", "DELCONSUMER", source, GROUP, scene.consumer()), ("DEL", KEYS.settings),
            ("XGROUP", "CREATE", source, "other", "0", "MKSTREAM"), ("ZADD", KEYS.schedule, 5, "no job"),
            ("DEL", KEYS.lease),
            ("XGROUP", "SETID", source, GROUP, "0"), ("SET", KEYS.journal, "x"), ("DEL", KEYS.quarantine),
            ("DEL", KEYS.journal),
        )
    )  # fmt: skip
    scene.command(*words)


_ACTIONS = (
    (8, add), (4, enqueue), (4, join), (10, read), (5, ack), (5, settle), (4, extend),
    (2, hold), (2, return_taken), (4, adopt), (6, walk),
    (6, recover), (3, take_over), (6, tick), (2, maintain), (2, report_lost),
    (3, operate), (3, elect), (1, tell), (3, disturb),
)  # fmt: skip
_action = st.sampled_from([action for weight, action in _ACTIONS for _ in range(weight)])
_calls = st.builds(
    lambda action, seed: Step(lambda twins: action(Scene(twins, seed)), f"{action.__name__} {seed}"),
    _action, st.integers(0, 1 << 16),
)  # fmt: skip
_passes = st.sampled_from((1, 15, 25, 60, 6000)).map(
    lambda ms: Step(lambda twins: twins.pass_time(ms), f"{ms} ms pass")
)
_begin = [run(0, "XGROUP", "CREATE", KEYS.stream, GROUP, "0", "MKSTREAM")]


def call_stories(*, steps: int) -> st.SearchStrategy[list[Step]]:
    """Return stories of about ``steps`` calls."""
    step = weighted((60, _calls), (8, _passes), (1, FAULTS))
    return st.lists(step, min_size=steps // 2, max_size=steps).map(lambda story: [*_begin, *story])
