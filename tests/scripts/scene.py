"""One stream and one group as the scripts find them, and a typed call for each script that works on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from redis.asyncio import Redis

from tests.support.dump import BASE_MS, Shown, dump
from workers.protocol.calls.recovery import Outcome
from workers.protocol.capabilities import Capability, capabilities_quietly
from workers.protocol.keys import NOBODY, READY_CONSUMER, GroupKeys, group_keys, stream_keys
from workers.protocol.scripts import load_script
from workers.runtime.clock import server_ms

FENCE = "reaper:7:alice"
LONG_IDLE_MS = 60_000
SUSPECT_SCORE = 2**52
BINARY = b"\xff\x00\r\n\xc3("
TOO_MANY = tuple(b"f%d" % number for number in range(20_200))
"""Flat fields of an entry that Redis accepts and that is too large to be copied."""

Word = str | bytes | int | float
Item = tuple[Word, ...]


@dataclass(frozen=True)
class Settling:
    """One item of ``settle``; the job's ID is the entry's."""

    entry_id: str
    verb: str
    times: Word
    data: str
    others: tuple[Word, ...]
    """Reason, error, delay and traceback, which an ack has not."""


@dataclass(frozen=True)
class Many:
    """A run of ``settle``: many acks that the journal has as one entry."""

    ids: tuple[str, ...]
    data: str
    verb: str = "acks"
    times: int = 1


def entry_id(number: int) -> str:
    """ID of the scene's entry ``number``."""
    return f"{BASE_MS + number}-0"


@dataclass
class Scene:
    """Entries are numbered from 1. ``deliver`` makes them pending with any count and idle time, at once."""

    client: Redis
    keys: GroupKeys = field(default_factory=lambda: group_keys("orders", "billing"))
    ready_owner: str = READY_CONSUMER
    """Who holds what is ready where it is: nobody, where the server has XNACK."""
    _entries: int = 0
    _made_visibility: bool = False
    """The group settings have their visibility timeout from `beats` alone."""
    _admin: Redis | None = None
    """The client of the scene, whoever `client` is by now."""

    def __post_init__(self) -> None:
        """Note whose scene it is: one for another user is made of it by `dataclasses.replace`."""
        self._admin = self._admin or self.client

    async def prepare(self, *, fence: str | None = FENCE) -> None:
        """Create the stream, the group and a leader's fence."""
        await self.client.xgroup_create(self.keys.stream, self.keys.group, "0", mkstream=True)
        if self.ready_owner != NOBODY and (await capabilities_quietly(self.client))[Capability.XNACK]:
            self.ready_owner = NOBODY
        if fence is not None:
            await self.client.set(self.keys.fence, fence)

    async def add(self, *flat: Word, stream: str | None = None, at: str | None = None) -> str:
        """Add an entry with these flat fields (``n``, its number, by default); returns its ID."""
        self._entries += 1
        at = at or entry_id(self._entries)
        words = flat or ("n", self._entries)
        await self.client.execute_command("XADD", stream or self.keys.stream, at, *words)
        return at

    async def add_many(self, count: int) -> list[str]:
        """Add ``count`` entries at once; returns their IDs."""
        ids = [entry_id(self._entries + number) for number in range(1, count + 1)]
        async with self.client.pipeline(transaction=False) as together:
            for number, one in enumerate(ids, self._entries + 1):
                together.execute_command("XADD", self.keys.stream, one, "n", number)
            await together.execute()
        self._entries += count
        return ids

    async def deliver(
        self,
        *ids: str,
        consumer: str = "w1",
        times: int = 1,
        idle_ms: int = LONG_IDLE_MS,
        stream: str | None = None,
    ) -> None:
        """Make entries pending, as if ``consumer`` had read them for the ``times``-th time ``idle_ms`` ago."""
        for one in ids:
            await self.client.execute_command(
                "XCLAIM", stream or self.keys.stream, self.keys.group, consumer, 0, one,
                "IDLE", idle_ms, "RETRYCOUNT", times, "FORCE", "JUSTID", "LASTID", one,
            )  # fmt: skip

    async def stalled(self, *flat: Word, times: int = 1, consumer: str = "w1") -> str:
        """Add an entry and deliver it long ago; returns its ID."""
        added = await self.add(*flat)
        await self.deliver(added, times=times, consumer=consumer)
        return added

    async def doomed(self, *flat: Word, times: int = 3, consumer: str = "w1") -> str:
        """Add an entry that has had its last delivery, a suspect that was let out alone; returns its ID."""
        added = await self.stalled(*flat, times=times, consumer=consumer)
        await self.client.hset(self.keys.suspects, added, "stream")
        return added

    async def agree(self, **values: Word) -> None:
        """Write into the group's agreement."""
        for name, value in values.items():
            await self.client.hset(self.keys.agreement, name, value)

    async def now_ms(self) -> int:
        """Return the server's time."""
        seconds, microseconds = await self.client.time()
        return int(seconds * 1000 + microseconds // 1000)

    async def fill_memory(self) -> None:
        """Reach the memory limit: from now on no command may use more."""
        await self.client.config_set("maxmemory", "1")

    async def free_memory(self) -> None:
        """Lift the limit again."""
        await self.client.config_set("maxmemory", "0")

    async def beats(self, visibility_ms: int = 30_000) -> None:
        """Let heartbeats have been served for long, so that recovery does not wait."""
        assert self._admin is not None
        settings = self.keys.agreement
        beat: Any = {"beat": await server_ms(self._admin), "unbroken": 1}
        self._made_visibility |= await self._admin.hsetnx(settings, "visibility_ms", visibility_ms) == 1
        await self._admin.hset(settings, mapping=beat)

    async def _beats_if_new(self, visibility_ms: int) -> None:
        """Do so, where the test has said nothing of it."""
        assert self._admin is not None
        if not await self._admin.hexists(self.keys.agreement, "beat"):
            await self.beats(visibility_ms)

    async def state(self) -> Shown:
        """Return everything there is but the beat, see `tests.support.dump`."""
        shown = await dump(self.client)
        settings: dict[str, str] = shown.pop(self.keys.agreement, {})
        for name in ("beat", "unbroken", "gap", *(("visibility_ms",) if self._made_visibility else ())):
            settings.pop(name, None)
        return shown | ({self.keys.agreement: settings} if settings else {})

    async def pending(self, source: str | None = None) -> list[tuple[str, str, int]]:
        """Return the pending entries as ``(ID, consumer, count)``."""
        rows: Any = await self.client.xpending_range(source or self.keys.stream, self.keys.group, "-", "+", 100_000)
        return [(one.decode(), consumer.decode(), count) for one, consumer, _, count in rows]

    async def recover(
        self,
        *ids: str,
        source: str | None = None,
        fence: str = FENCE,
        visibility_ms: int = 30_000,
        max_deliveries: int = 3,
        policy: str = "stream",
        journal: bool = True,
        budget_bytes: int = 10**9,
        longest_ms: int = 10**9,
    ) -> Any:
        """Run ``recover_entries``; return its answer with a row for each entry, see `rows`."""
        keys = self.keys
        await self._beats_if_new(visibility_ms)
        reply = await load_script("reaper", "recover_entries").run(
            self.client,
            [
                source or keys.stream, keys.stream, keys.retry, keys.dead, keys.schedule, keys.suspects, keys.fence,
                keys.agreement, keys.journal, keys.notes,
            ],
            [
                fence, keys.group, visibility_ms, max_deliveries, policy, int(journal), 1_000, 7, budget_bytes,
                longest_ms, *ids,
            ],
        )  # fmt: skip
        return one_by_one(reply, [one.encode() for one in ids])

    async def autoclaim(
        self,
        *abandoned: str,
        source: str | None = None,
        consumer: str = "w2",
        visibility_ms: int = 30_000,
        max_deliveries: int = 3,
        policy: str = "stream",
        journal: bool = True,
        cursor: str = "-",
        room: int = 100,
        patience_ms: int = 10**6,
        page: int = 500,
        budget_bytes: int = 10**9,
        most: int = 1_000,
    ) -> Any:
        """Run ``autoclaim``."""
        keys = self.keys
        await self._beats_if_new(visibility_ms)
        return await load_script("workers.protocol", "autoclaim").run(
            self.client,
            [
                source or keys.stream, keys.stream, keys.retry, keys.dead, keys.schedule, keys.suspects,
                keys.agreement, keys.journal, keys.notes,
            ],
            [
                keys.group, consumer, visibility_ms, max_deliveries, policy, int(journal), 1_000, cursor,
                room, patience_ms, page, budget_bytes, most, *abandoned,
            ],
        )  # fmt: skip

    async def release(self, *, fence: str = FENCE, policy: str = "stream", journal: bool = True) -> Any:
        """Run ``release_suspects``."""
        keys = self.keys
        return await load_script("workers.protocol", "release_suspects").run(
            self.client,
            [
                keys.stream,
                keys.retry,
                keys.schedule,
                keys.suspects,
                keys.fence,
                keys.agreement,
                keys.journal,
                keys.notes,
            ],
            [fence, keys.group, policy, int(journal), 1_000, 7],
        )

    async def settle(
        self,
        *items: Settling | Many,
        source: str | None = None,
        consumer: str = "w1",
        max_deliveries: int = 3,
        policy: str = "stream",
        journal: bool = True,
        reply_was_lost: bool = False,
        delete_acked: bool = False,
        names_suspects: bool = True,
        proven_ms: int | str | None = None,
    ) -> Any:
        """Run ``settle``; see `item`."""
        keys = self.keys
        return await load_script("workers.protocol", "settle").run(
            self.client,
            [
                source or keys.stream, keys.stream, keys.retry, keys.dead, keys.agreement, keys.journal, keys.schedule,
                *((keys.suspects, keys.notes) if names_suspects else ()),
            ],
            [
                keys.group, consumer, max_deliveries, policy, int(journal), 1_000, int(reply_was_lost),
                int(delete_acked), *_runs(items, proven_ms),
            ],
        )  # fmt: skip

    async def extend(
        self,
        *ids: str,
        source: str | None = None,
        consumer: str = "w1",
        times: int = 1,
        as_ours: bool = False,
    ) -> Any:
        """Run ``extend_visibility`` on deliveries that ``consumer`` says it holds for the ``times``-th time.

        ``as_ours``: with all keys that a worker of ours names; the server's time is left out of the reply.
        """
        items = [(one, times) for one in ids]
        more = [self.keys.agreement, self.keys.stream, self.keys.retry, self.keys.suspects] if as_ours else []
        reply: Any = await load_script("workers.protocol", "extend_visibility").run(
            self.client,
            [source or self.keys.stream, self.keys.journal, *more],
            [self.keys.group, consumer, *(word for one in items for word in one)],
        )
        return reply[: len(ids)]

    async def idle_ms(self, source: str | None = None) -> dict[str, int]:
        """Return for how long each pending entry has been idle."""
        rows: Any = await self.client.xpending_range(source or self.keys.stream, self.keys.group, "-", "+", 100_000)
        return {one.decode(): idle for one, _, idle, _ in rows}

    async def move_due(
        self,
        *,
        fence: str = FENCE,
        policy: str = "stream",
        journal: bool = True,
        most: int = 100,
        budget_bytes: int = 10**9,
    ) -> Any:
        """Run ``move_due``."""
        keys = self.keys
        return await load_script("workers.protocol", "move_due").run(
            self.client,
            [
                keys.stream,
                keys.retry,
                keys.schedule,
                keys.stream_schedule,
                keys.fence,
                keys.agreement,
                keys.journal,
                keys.notes,
            ],
            [fence, keys.group, policy, int(journal), 1_000, 7, most, budget_bytes, 20_000],
        )

    async def enqueue(self, *jobs: Item, call: str = "call-1", call_ms: int = 60_000, job_ms: int = 600_000) -> Any:
        """Run ``enqueue``; a job is its ID ('' = any), its delay in ms and the flat fields."""
        keys = stream_keys(self.keys.stream)
        words: list[Word] = []
        for job_id, delay_ms, *flat in jobs:
            words += (job_id or "made-up", int(bool(job_id)), delay_ms, len(flat), *flat)
        return await load_script("workers.protocol", "enqueue").run(
            self.client, [keys.stream, keys.schedule, keys.enqueued], [call, call_ms, job_ms, *words]
        )

    async def make_due(self, schedule: str) -> None:
        """Make everything in ``schedule`` due, in its order, as if the time had passed; suspects stay."""
        rows: Any = await self.client.zrange(schedule, 0, -1, withscores=True)
        for at, (member, score) in enumerate(rows):
            if score < SUSPECT_SCORE:
                await self.client.zadd(schedule, {member: at})

    async def adopt(
        self,
        *in_flight: tuple[str, int],
        source: str | None = None,
        consumer: str = "w1.new",
        from_consumer: str = "w1",
        case: str = "restart",
        room: int = 100,
        suspect_room: int = 0,
        max_deliveries: int = 3,
        policy: str = "stream",
        journal: bool = True,
        after: str = "-",
    ) -> Any:
        """Run ``adopt``."""
        keys = self.keys
        return await load_script("workers.protocol", "adopt").run(
            self.client,
            [
                source or keys.stream, keys.dead, keys.agreement, keys.journal, keys.stream, keys.suspects,
                keys.schedule, keys.retry, keys.notes,
            ],
            [
                keys.group, consumer, from_consumer, case, room, suspect_room, max_deliveries, policy, int(journal),
                1_000, after, *(word for one in in_flight for word in one),
            ],
        )  # fmt: skip


def item(
    one: str,
    verb: str,
    *,
    times: Word = 1,
    reason: str | None = None,
    error: str = "",
    data: str = "",
    delay_ms: int | str = "",
    traceback: str = "",
) -> Settling:
    """Return one item of ``settle``."""
    facts = data or f'{{"v":1,"group":"billing","entry":"{one}"}}'
    reason = ("" if verb == "hand_back" else "max_deliveries") if reason is None else reason
    return Settling(one, verb, times, facts, () if verb == "ack" else (reason, error, delay_ms, traceback))


def _runs(items: Sequence[Settling | Many], proven_ms: int | str | None) -> Iterator[Word]:
    """Yield the words of items, as ``settle`` reads them."""
    for (verb, times), run in groupby(items, key=lambda one: (one.verb, one.times)):
        count = times if proven_ms is None else f"{times},{proven_ms}"
        together: list[Settling] = []
        for one in run:
            if isinstance(one, Many):
                yield from (verb, count, len(one.ids), one.data, *one.ids)
            else:
                together.append(one)
        if together:
            yield from (verb, count, len(together))
        for one in together:
            yield from (one.entry_id, one.entry_id, one.data, *one.others)


def one_by_one(reply: Any, ids: Sequence[bytes]) -> Any:
    """Return an answer of ``recover_entries`` in which plain jobs that are ready again have rows as all others have."""
    if reply[0] != b"ok":
        return reply
    runs = iter(reply[1])
    plain = ((consumer, count, idle) for consumer, count, idles in zip(runs, runs, runs, strict=True) for idle in idles)
    found: list[Any] = []
    for one, row in zip(ids, reply[2:], strict=True):
        if isinstance(row, bytes):
            consumer, count, idle = next(plain)
            row = [int(Outcome.REDELIVERED), row, idle, consumer, one, count]  # noqa: PLW2901
        found.append(row)
    assert next(plain, None) is None
    return [reply[0], *found]


def rows(reply: Any) -> list[tuple[Any, ...]]:
    """Return the rows of ``recover_entries`` as ``(code, consumer, job, count)``, or just the code."""
    assert reply[0] == b"ok", reply
    return [(row[0], *(_word(part) for part in row[3:])) for row in reply[1:]]


def details(reply: Any) -> list[str | int]:
    """Return the second element of each row: new entry ID, dead letter's ID, remaining ms, or why it is held."""
    assert reply[0] == b"ok", reply
    return [_word(row[1]) if len(row) > 1 else "" for row in reply[1:]]


def ready(
    job: str,
    deliveries: int,
    consumers: str,
    *user: Word,
    first_ms: int | None = None,
    generation: int = 0,
    copies: int = 1,
    waits: int = 0,
    hand_backs: int = 0,
    suspect: bool = False,
) -> tuple[str, ...]:
    """Return the flat fields of a job that has been made ready again, as `dump` shows them.

    Those of a dead letter begin so too, without copies.
    """
    first_ms = first_ms if first_ms is not None else int(job.split("-")[0])
    ours = (
        ("reaper.job", job),
        ("reaper.deliveries", deliveries),
        ("reaper.generation", generation),
        ("reaper.first_ms", first_ms),
        ("reaper.consumers", consumers),
        *((("reaper.copies", copies),) if copies else ()),
        *((("reaper.waits", waits),) if waits else ()),
        *((("reaper.hand_backs", hand_backs),) if hand_backs else ()),
        *((("reaper.suspect", 1),) if suspect else ()),
    )
    return tuple(shown(word) for word in (*user, *(part for pair in ours for part in pair)))


def shown(word: Word) -> str:
    """Return ``word`` as `dump` shows it."""
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)


def dead(one: str, reason: str, error: str, *, last: str = "now") -> tuple[str, ...]:
    """Return the fields that a dead letter of entry ``one`` has beyond those of a ready job."""
    ours: Sequence[tuple[str, str]] = (
        ("stream", "orders"),
        ("group", "billing"),
        ("entry", one),
        ("reason", reason),
        ("error", error),
        ("last_ms", last),
        ("at_ms", "now"),
    )
    return tuple(part for name, value in ours for part in (f"reaper.dead.{name}", value))


def _word(value: bytes | int) -> str | int:
    return value if isinstance(value, int) else value.decode("latin-1")
