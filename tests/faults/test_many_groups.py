"""A thousand groups on servers that fail over. No live worker loses a job, and each group is held again soon.

Three replicas share the groups, which they find by a pattern. In some groups, live workers run jobs that outlast the
fault. In others, a consumer that never comes back has taken jobs, which have to be recovered once.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.drill.history import read_events
from reaper.lease import OFFER
from tests.faults import scene
from tests.faults.deliveries import read_long_ago
from tests.faults.scene import GROUP
from tests.support.cluster import Cluster, started_cluster
from tests.support.patience import scaled
from tests.support.processes import Processes
from tests.support.sentinel import Setup, started_setup
from tests.support.servers import RedisServer
from tests.support.waiting import answers, wait_until
from workers.protocol.connection import commands_client
from workers.protocol.events import EventName
from workers.protocol.keys import GroupKeys, group_keys
from workers.protocol.messages import text
from workers.protocol.slots import slot_of

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]

GROUPS, REPLICAS = 1_000, 3
MOVING, TOGETHER = "jobs:{moved}", 10
"""So many of the groups lie in one slot of a cluster, whose streams begin so."""
LIVE, STALLED, JOBS = 4, 20, 2
"""Groups with live workers, and groups with stalled jobs, of each kind that a fault tells apart. Jobs of each."""
VISIBILITY_S, TTL_S = 4.0, 1.0
FAILS_OVER_MS = round(1_200 * scaled(VISIBILITY_S))
"""A master that is away for so long has a heir: all deliveries look overdue then, and all leases have expired."""
AWAY_S = 3.0
"""A replica talks to the new master so long after its promotion, at the latest."""


@dataclass
class Many:
    """The groups of one test, and their jobs."""

    servers: Setup | Cluster
    client: Redis
    keys: list[GroupKeys]
    live: dict[GroupKeys, set[str]] = field(default_factory=dict)
    stalled: dict[GroupKeys, set[str]] = field(default_factory=dict)
    handler: scene.Handler = field(default_factory=scene.Handler)

    @classmethod
    def created(cls, servers: Setup | Cluster, client: Redis) -> "Many":
        """Create the groups, which look as if heartbeats had been served in them for long."""
        streams = [f"{MOVING}:{n}" if n < TOGETHER else f"jobs:{n}" for n in range(GROUPS)]
        many, now_ms = cls(servers, client, [group_keys(stream, GROUP) for stream in streams]), _now_ms()
        for node, groups in many.by_master(many.keys):
            with node.client() as own, own.pipeline(transaction=False) as together:
                for keys in groups:
                    together.xgroup_create(keys.stream, keys.group, "0", mkstream=True)
                    together.hset(keys.settings, mapping={"unbroken": 1, "beat": now_ms})
                together.execute()
        return many

    def by_master(self, groups: Sequence[GroupKeys]) -> Iterator[tuple[RedisServer, list[GroupKeys]]]:
        """Yield each master that has some of ``groups``, and those."""
        if isinstance(self.servers, Setup):
            yield self.servers.master, list(groups)
            return
        table, found = self.servers.table(), dict[int, list[GroupKeys]]()
        for keys in groups:
            host = table.owner(slot_of(keys.stream.encode()))
            found.setdefault(host[1] if host else 0, []).append(keys)
        yield from ((node, found[node.port]) for node in self.servers.nodes if node.port in found)

    def at(self, node: RedisServer) -> list[GroupKeys]:
        """Return the groups that lie on ``node`` now."""
        return next(groups for master, groups in self.by_master(self.keys) if master is node)

    def start_replicas(self, processes: Processes) -> None:
        """Start the replicas. They look for streams every second, also in the middle of a fault."""
        values = {
            "redis-url": self.servers.url,
            "groups": f"jobs:*/{GROUP}",
            "visibility-timeout": scaled(VISIBILITY_S),
            "lease-ttl": scaled(TTL_S),
            "discovery-interval": 1,
        }
        flags = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        for _ in range(REPLICAS):
            processes.python("-m", "tests.support.paced", "run", *flags, name="reaper")

    async def are_held(self, groups: Sequence[GroupKeys]) -> float:
        """Wait until each of ``groups`` has a lease that was taken or extended from now on. Return when that was."""
        since_ms = _now_ms()

        def all_held() -> bool:
            try:
                return all(_extended_at_ms(node, some) >= since_ms for node, some in self.by_master(groups))
            except (RedisError, OSError):  # a node does not answer yet
                return False

        await wait_until(all_held, f"{len(groups)} groups are held")
        return time.monotonic()

    async def begin(self, running: AsyncExitStack, kinds: Sequence[Sequence[GroupKeys]]) -> None:
        """Have live workers run jobs in some groups of each kind, and let jobs stall in others."""
        for kind in kinds:
            for keys in kind[:LIVE]:
                settings = {"stream": keys.stream, "concurrency": JOBS, "visibility_timeout": scaled(VISIBILITY_S)}
                await running.enter_async_context(scene.running_worker(self.servers.url, self.handler, **settings))
                self.live[keys] = await self._enqueue(keys)
        await self.handler.has_started(sum(map(len, self.live.values())))
        for kind in kinds:
            for keys in kind[LIVE : LIVE + STALLED]:
                self.stalled[keys] = await self._enqueue(keys)
                taken = await read_long_ago(self.client, keys.stream, GROUP, "gone", JOBS, 0)
                assert set(map(text, taken)) == self.stalled[keys]

    async def _enqueue(self, keys: GroupKeys) -> set[str]:
        """Add jobs that wait for the gate. Return their IDs."""
        return {text(await self.client.xadd(keys.stream, {"n": n, "hold": ""})) for n in range(JOBS)}

    async def judge(self, client: Redis) -> None:
        """Wait until the stalled jobs are recovered, once each, and see that no other job is."""
        await wait_until(partial(self._is_recovered, client), "all stalled jobs are recovered")
        self.handler.open_gate()
        jobs = dict.fromkeys(set().union(*self.live.values()), 1)
        await wait_until(lambda: len(self.handler.completions) >= len(jobs), "the live workers have done their jobs")
        assert scene.times(self.handler.starts) == scene.times(self.handler.completions) == jobs
        for keys in self.live:
            assert await self._recovered(client, keys) == {}
        for keys, stalled in self.stalled.items():
            assert await self._recovered(client, keys) == dict.fromkeys(stalled, 1)

    async def _is_recovered(self, client: Redis) -> bool:
        for keys, stalled in self.stalled.items():
            if stalled - (await self._recovered(client, keys)).keys():
                return False
        return True

    async def _recovered(self, client: Redis, keys: GroupKeys) -> Counter[str]:
        return Counter(event.job for event in await read_events(client, keys) if event.event == EventName.RECOVERED)


def _now_ms() -> int:
    """Return the time of all servers on this machine."""
    return round(time.time() * 1000)


def _extended_at_ms(node: RedisServer, groups: Sequence[GroupKeys]) -> float:
    """Return since when ``node`` has extended the leases of all ``groups``, or taken them; 0 = one has none."""
    with node.client() as client, client.pipeline(transaction=False) as together:
        for keys in groups:
            together.get(keys.lease)
            together.pttl(keys.lease)
        now_ms, replies = _now_ms(), together.execute()
    holders, left_ms = replies[::2], replies[1::2]
    if not all(holder and not holder.startswith(OFFER.encode()) for holder in holders):
        return 0
    return now_ms + min(map(float, left_ms)) - scaled(TTL_S) * 1000


def _have_everything(nodes: Sequence[RedisServer], master: RedisServer) -> bool:
    """Tell whether ``nodes`` have received all that ``master`` has written until now."""
    offset = master.replication()["master_repl_offset"]
    return all(node.replication()["slave_repl_offset"] >= offset for node in nodes)


async def test_sentinels_promote_a_replica(binary: Path, processes: Processes) -> None:
    with started_setup(binary, down_after_ms=FAILS_OVER_MS) as setup:
        async with AsyncExitStack() as running:
            client = await running.enter_async_context(commands_client(setup.url))
            many, before = Many.created(setup, client), setup.master
            many.start_replicas(processes)
            await many.are_held(many.keys)
            await many.begin(running, [many.keys])
            heirs = [node for node in setup.nodes if node is not before]
            await wait_until(partial(_have_everything, heirs, before), "the replicas have all deliveries")
            before.kill()
            await setup.has_failed_over(before)
            promoted_at = time.monotonic()
            away_s = await many.are_held(many.keys) - promoted_at
            assert away_s <= scaled(TTL_S + AWAY_S)
            await wait_until(lambda: answers(client), "the new master answers")
            await many.judge(client)


@pytest.mark.parametrize("registry", ["stays", "dies"])
async def test_a_master_of_a_cluster_dies_while_a_slot_moves(binary: Path, processes: Processes, registry: str) -> None:
    """With ``dies``, the replicas lose what they know of each other, too."""
    with started_cluster(binary, replicas=1, node_timeout_ms=FAILS_OVER_MS) as cluster:
        masters, source = cluster.masters(), cluster.owner(MOVING)
        home = cluster.owner(scene.NAMESPACE.replicas)
        struck = next(node for node in masters if node is not source and (node is home) == (registry == "dies"))
        to = next(node for node in masters if node is not source and node is not struck)
        heir = cluster.nodes[cluster.nodes.index(struck) + len(masters)]
        async with AsyncExitStack() as running:
            client = await running.enter_async_context(commands_client(cluster.url))
            many = Many.created(cluster, client)
            many.start_replicas(processes)
            await many.are_held(many.keys)
            moving, dying = many.keys[:TOGETHER], many.at(struck)
            others = [keys for keys in many.keys if keys not in moving and keys not in dying]
            await many.begin(running, [moving, dying, others])
            await wait_until(partial(_have_everything, [heir], struck), "the replica has all deliveries")
            cluster.begin_move(MOVING, to)
            struck.kill()
            assert await cluster.has_failed_over(dying[0].stream, struck) is heir
            promoted_at = time.monotonic()
            away_s = await many.are_held(dying) - promoted_at
            cluster.move_keys(MOVING, to)
            cluster.end_move(MOVING, to)
            moved_at = time.monotonic()
            moved_s = await many.are_held(moving) - moved_at
            assert max(away_s, moved_s) <= scaled(TTL_S + AWAY_S), f"{away_s:.1f} s, {moved_s:.1f} s after the move"
            await many.are_held(many.keys)
            async with commands_client(cluster.url) as anew:  # a new client knows only the new place of the slot
                await many.judge(anew)
