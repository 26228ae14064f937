"""A replica."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from reaper.service import Reaper
from reaper.settings import GroupSettings, ReaperSettings
from tests.simulation.actors.actor import Actor
from tests.simulation.loop import Process
from tests.simulation.places import GROUP, STREAM, URL
from tests.support.paced import PacedSettings
from workers.protocol.messages import Redelivery

if TYPE_CHECKING:
    from tests.simulation.world import World

SCANS_PART, FULL_SCANS_PART = 1 / 8, 0.5
"""How often replicas scan here at least, and scan fully, in visibility timeouts."""
REGISTRATIONS = 3
"""Registrations within one lease."""


class Replica(Actor):
    """`Reaper`."""

    goes_by_mode = True

    def __init__(self, world: "World", role: str) -> None:
        super().__init__(world, role)
        setting = world.story.setting
        self.settings: ReaperSettings = PacedSettings(
            redis_url=URL,
            name=role,
            groups=(GroupSettings(stream=STREAM, group=GROUP),),
            visibility_timeout=timedelta(seconds=setting.visibility_s),
            max_deliveries=setting.max_deliveries,
            redelivery=Redelivery(setting.redelivery),
            lease_ttl=timedelta(seconds=setting.lease_s),
            full_scan_interval=timedelta(seconds=setting.visibility_s * FULL_SCANS_PART),
            registration_interval=timedelta(seconds=setting.longest_lease_s / REGISTRATIONS),
            heartbeat_interval=timedelta(seconds=setting.visibility_s / 4),
            journal=setting.journal,
            journal_maxlen=1_000_000,
        )
        self.reaper: Reaper | None = None

    async def run(self, process: Process) -> None:  # noqa: ARG002
        self.reaper = Reaper(self.settings)
        await self.reaper.run()

    @property
    def is_wanted(self) -> bool:
        return not self.world.recovers_itself

    @property
    def replica_id(self) -> str:
        """The replica's ID, or '' before it has begun."""
        return self.reaper.replica_id if self.reaper is not None else ""

    @property
    def serves(self) -> bool:
        """Whether it believes that it holds the lease, and watches the group."""
        return self.reaper is not None and self.reaper.held > 0

    async def stop(self) -> None:
        if self.reaper is not None:
            self.reaper.stop()

    def change_settings(self, changes: Mapping[str, Any]) -> None:
        """Use other settings from the next start on."""
        values = self.settings.model_dump(exclude_unset=True) | dict(changes)
        values["groups"] = self.settings.groups
        self.settings = PacedSettings(**values)
