"""One stream and one group as the scripts find them, and a typed call for each script that works on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from tests.support.dump import BASE_MS, Shown, dump
from workers.protocol.calls.group_moves import RECOVER
from workers.protocol.calls.moves import ACK, EXTEND
from workers.protocol.keys import GroupKeys, group_keys, stream_keys
from workers.protocol.scripts import load_script
from workers.runtime.clock import server_ms

HOLDER = "alice-1-abc.0a@10000"
LONG_IDLE_MS = 60_000
QUARANTINE_SCORE = 2**52
BINARY = b"\xff\x00\r\n\xc3("
TOO_MANY = tuple(b"f%d" % number for number in range(20_200))
"""Flat fields of an entry that Redis accepts and that is too large to be copied."""

Word = str | bytes | int | float
Item = tuple[Word, ...]


def entry_id(number: int) -> str:
    """ID of the scene's entry ``number``."""
    return f"{BASE_MS + number}-0"


@dataclass
class Scene:
    """Its entries are numbered from 1. ``deliver`` makes them pending with any count and idle time, at once."""

    client: Redis
    keys: GroupKeys = field(default_factory=lambda: group_keys("orders", "billing"))
    _entries: int = 0
    _made: set[str] = field(default_factory=set)
    """Group settings that only the calls of this class have written."""
    _admin: Redis | None = None
    """The client of the scene, also after `client` was replaced."""

    def __post_init__(self) -> None:
        """Note the owner of the scene. `dataclasses.replace` makes a scene for another user of it."""
        self._admin = self._admin or self.client

    async def prepare(self, *, lease: str | None = HOLDER) -> None:
        """Create the stream, the group and its lease."""
        await self.client.xgroup_create(self.keys.stream, self.keys.group, "0", mkstream=True)
        if lease is not None:
            await self.client.set(self.keys.lease, lease)

    async def add(self, *flat: Word, stream: str | None = None, at: str | None = None) -> str:
        """Add an entry with these flat fields (``n``, its number, by default), and return its ID."""
        self._entries += 1
        at = at or entry_id(self._entries)
        words = flat or ("n", self._entries)
        await self.client.execute_command("XADD", stream or self.keys.stream, at, *words)
        return at

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
        """Add an entry, deliver it long ago, and return its ID."""
        added = await self.add(*flat)
        await self.deliver(added, times=times, consumer=consumer)
        return added

    async def doomed(self, *flat: Word, times: int = 3, consumer: str = "w1") -> str:
        """Add a quarantined job that was released alone and has had its last delivery, and return its entry ID."""
        added = await self.stalled(*flat, times=times, consumer=consumer)
        await self.client.hset(self.keys.quarantine, added, "stream,,0")
        return added

    async def set_settings(self, **values: Word) -> None:
        """Write into the group settings."""
        for name, value in values.items():
            await self.client.hset(self.keys.settings, name, value)

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
        """Record old heartbeats, so that recovery does not wait."""
        assert self._admin is not None
        settings = self.keys.settings
        beat: Any = {"beat": await server_ms(self._admin), "unbroken": 1}
        await self._terms(visibility_ms=visibility_ms)
        await self._admin.hset(settings, mapping=beat)

    async def _beats_if_new(self, visibility_ms: int) -> None:
        """Record old heartbeats, unless the test has set a beat."""
        assert self._admin is not None
        if not await self._admin.hexists(self.keys.settings, "beat"):
            await self.beats(visibility_ms)

    async def state(self) -> Shown:
        """Return all keys except the beat, see `tests.support.dump`."""
        shown = await dump(self.client)
        settings: dict[str, str] = shown.pop(self.keys.settings, {})
        for name in ("beat", "unbroken", "gap", *self._made):
            settings.pop(name, None)
        return shown | ({self.keys.settings: settings} if settings else {})

    async def pending(self, source: str | None = None) -> list[tuple[str, str, int]]:
        """Return the pending entries as ``(ID, consumer, count)``."""
        rows: Any = await self.client.xpending_range(source or self.keys.stream, self.keys.group, "-", "+", 100_000)
        return [(one.decode(), consumer.decode(), count) for one, consumer, _, count in rows]

    async def _terms(self, **values: Word) -> None:
        """Write into the group settings what the test has not written."""
        assert self._admin is not None
        for name, value in values.items():
            self._made |= {name} if await self._admin.hsetnx(self.keys.settings, name, value) == 1 else set()

    def _names(self, source: str | None) -> list[str]:
        keys = self.keys
        return [
            source or keys.stream, keys.stream, keys.retry, keys.dead, keys.settings, keys.schedule, keys.quarantine,
            keys.journal,
        ]  # fmt: skip

    async def recover(
        self, *ids: str, source: str | None = None, lease: str = HOLDER, visibility_ms: int = 30_000,
        max_deliveries: int = 3, policy: str = "stream", journal: bool = True,
    ) -> Any:  # fmt: skip
        """Run ``recover`` as the holder of the lease."""
        await self._beats_if_new(visibility_ms)
        await self._terms(policy=policy, visibility_ms=visibility_ms, max_deliveries=max_deliveries)
        words: list[Word] = [self.keys.group, 1_000 * journal, lease, 7, 10**9, *ids]
        return await RECOVER.run(self.client, [*self._names(source), self.keys.lease], words)

    async def walk(self, consumer: str = "w2") -> Any:
        """Run ``recover`` as an embedded worker."""
        await self._beats_if_new(30_000)
        await self._terms(policy="stream", visibility_ms=30_000, max_deliveries=3)
        words: list[Word] = [self.keys.group, 1_000, "", 0, 10**9, consumer, "-", 500, 100]
        return await RECOVER.run(self.client, [*self._names(None), self.keys.lease], words)

    async def extend(self, *ids: str, consumer: str = "w1") -> Any:
        """Run ``extend`` on first deliveries of ``consumer``, and return the results."""
        await self._terms(policy="stream", visibility_ms=30_000, max_deliveries=3)
        words: list[Word] = [self.keys.group, 0, consumer, *(word for one in ids for word in (one, 1, 1))]
        return await EXTEND.run(self.client, self._names(None), words)

    async def ack(self, *ids: str, number: int = 1, delete: bool = False) -> Any:
        """Run ``ack``."""
        words: list[Word] = [self.keys.group, 1_000, "w1", "w1", number, int(delete), len(ids), *ids]
        return await ACK.run(self.client, self._names(None), words)

    async def enqueue(self, *jobs: Item, call: str = "call-1", call_ms: int = 60_000, job_ms: int = 600_000) -> Any:
        """Run ``enqueue``. A job is its ID ('' = any), its delay in ms and the flat fields."""
        keys = stream_keys(self.keys.stream)
        words: list[Word] = []
        for job_id, delay_ms, *flat in jobs:
            words += (job_id or "made-up", int(bool(job_id)), delay_ms, len(flat), *flat)
        return await load_script("workers.protocol", "enqueue").run(
            self.client, [keys.stream, keys.schedule, keys.enqueued], [call, call_ms, job_ms, *words]
        )

    async def make_due(self, schedule: str) -> None:
        """Make the jobs in ``schedule`` due, in their order, as if the time had passed. Quarantined jobs stay."""
        rows: Any = await self.client.zrange(schedule, 0, -1, withscores=True)
        for at, (member, score) in enumerate(rows):
            if score < QUARANTINE_SCORE:
                await self.client.zadd(schedule, {member: at})


def ready(job: str, deliveries: int, consumers: str, *user: Word) -> tuple[str, ...]:
    """Return the flat fields of a job that has been made ready again, as `dump` shows them."""
    ours: Sequence[Item] = (
        ("reaper.job", job),
        ("reaper.deliveries", deliveries),
        ("reaper.generation", 0),
        ("reaper.first_ms", int(job.split("-")[0])),
        ("reaper.consumers", consumers),
        ("reaper.copies", 1),
    )
    return tuple(shown(word) for word in (*user, *(part for pair in ours for part in pair)))


def shown(word: Word) -> str:
    """Return ``word`` as `dump` shows it."""
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)
