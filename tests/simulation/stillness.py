"""Check that no delivery stands still, by looking at the pending ones several times in a visibility timeout.

Time is that of the world, because stories set the server's clock. A delivery moves when it is extended or claimed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reaper.operations.judgement import judge
from reaper.operations.snapshot import take_snapshot
from reaper.settings import LEASES
from tests.simulation.actors.our_worker import OurWorker
from tests.simulation.actors.replica import SCANS_PART
from tests.simulation.places import GROUP, KEYS, NAMESPACE
from tests.simulation.server.streams import Stream
from tests.simulation.server.words import id_text
from workers.protocol.messages import text

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOKS_PER_TIMEOUT = 4
SCANS = 2
FORMER_S = 40.0
"""For so long a lowered visibility timeout does not count yet, with the call that is under way then."""
READY_MS = 10**9
"""An entry that is idle for longer was given back where it is."""
Delivery = tuple[str, int, int, int]
"""A stream's key, an entry's ID, since when it has been idle (the server's ms), and how often it was delivered."""


class Stillness:
    """The pending deliveries, and how long each has been without a sign of life."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._since: dict[Delivery, float] = {}
        self._in_force_s, self._lowered_at = 0.0, 0.0

    @property
    def looks_s(self) -> float:
        """How long to wait until the next look."""
        return self._world.story.setting.visibility_s / LOOKS_PER_TIMEOUT

    @property
    def bound_s(self) -> float:
        """The longest time for which promise I6 lets a delivery stand still after the last fault."""
        setting, timeouts = self._world.story.setting, self._world.visibilities
        lease_s = min(setting.lease_s, max(timeouts) / LEASES) if self._world.story.has_replicas else 0.0
        longest = min(max(timeouts), max(self._in_force_s, timeouts[-1]) + self._former_s)
        # A step back of the server's clock is a gap. A delivery that is found idle for less than before starts anew.
        is_set_back = any(step.kind == "clock" and step.value < 0 for step in self._world.story.steps)
        return longest * (2 if is_set_back else 1) + lease_s + SCANS * SCANS_PART * setting.visibility_s

    @property
    def _former_s(self) -> float:
        """The time for which the timeout before the last lowering still counted after the last fault."""
        now, at = self._world.loop.now, self._lowered_at
        served_s = now - at - self._world.unserved.seconds_since(at)  # a gap leaves of it what was left
        return max(0.0, FORMER_S - max(0.0, served_s - (now - self._world.course.troubled_until)))

    def _look_at_settings(self) -> None:
        settings = self._world.server.keys.values.get(KEYS.settings.encode())
        in_force_ms = settings.get(b"visibility_ms") if isinstance(settings, dict) else None
        if in_force_ms and int(in_force_ms) / 1000 != self._in_force_s:
            self._in_force_s, self._lowered_at = int(in_force_ms) / 1000, self._world.loop.now

    async def look(self, client: Redis) -> None:
        """Look. A delivery that stands still for too long is a finding, and so is a status that does not report it."""
        self._look_at_settings()
        still = dict(self._look())
        if not still:
            return
        for entry, for_s in still.items():
            self._world.findings.add(
                f"I6: {entry} stands still while nothing befalls anybody; {self.bound_s:.0f} s are allowed",
                f"after {for_s:.0f} s, at {self._world.loop.now:.1f} s",
            )
        try:
            problems = judge(await take_snapshot(client, NAMESPACE))
        except (RedisError, OSError):
            return  # the server cannot be asked
        for entry in still.keys() & dict(self._look()).keys() if not problems else ():
            self._world.findings.add(
                f"S: {entry} stands still, and status says healthy", f"at {self._world.loop.now:.1f} s"
            )

    def _look(self) -> Iterator[tuple[str, float]]:
        now, since = self._world.loop.now, self._since
        self._since = {one: since.get(one, now) for one in self._pending()}
        for (key, number, _, _), began in self._since.items():
            for_s = now - max(began, self._world.course.troubled_until)
            if for_s > self.bound_s:
                yield f"entry {text(id_text(number))} of {key}", for_s

    def _pending(self) -> Iterator[Delivery]:
        now_ms = self._world.server.now_ms
        alive = [actor for actor in self._world.actors.values() if self._world.alive(actor.role)]
        living = {actor.consumer for actor in alive}
        ours = [actor for actor in alive if isinstance(actor, OurWorker)]
        # A worker needs a free slot to look for its own deliveries whose read had no answer. If it is the only worker,
        # these jobs could not run earlier.
        busy = ours[0].consumer if self._world.recovers_itself and len(ours) == 1 and ours[0].is_full else b""
        for key in (KEYS.stream, KEYS.retry):
            stream = self._world.server.keys.values.get(key.encode())
            group = stream.groups.get(GROUP.encode()) if isinstance(stream, Stream) else None
            if group is not None:
                for number, row in group.pending.values.items():
                    owner = row.consumer.name if row.consumer is not None else b""
                    if owner and owner != busy and now_ms - row.delivered_ms < READY_MS:
                        # A recovery that waits restarts idle times of young deliveries. That is no movement.
                        yield key, number, row.delivered_ms if owner in living else 0, row.times
