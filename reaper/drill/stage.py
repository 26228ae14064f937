"""What an act is played on: its keys, its client, its folder."""

import itertools
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from reaper.drill.cluster_setup import share_of
from reaper.drill.faults import FaultKind
from reaper.drill.recoveries import Recovery
from reaper.drill.redis_server import Server
from reaper.drill.settings import DrillSettings
from workers.protocol.keys import GroupKeys, NamespaceKeys, group_keys, namespace_keys

if TYPE_CHECKING:
    from reaper.drill.tracing import Tracing

GROUP = "workers"


@dataclass(frozen=True, slots=True)
class Stage:
    """One act's own stream, group, namespace and folder. Nothing else in this Redis is touched."""

    client: Redis
    server: Server
    settings: DrillSettings
    recovery: Recovery
    folder: Path
    keys: GroupKeys
    namespace: NamespaceKeys
    tracing: "Tracing | None" = None
    """Where traces go, if they are to be shown."""
    leaders: Redis | None = None
    """The client for the namespace's keys, where they lie at another node than the stream's."""

    @property
    def namespace_client(self) -> Redis:
        """The client for the namespace's keys."""
        return self.leaders or self.client

    @property
    def failpoints(self) -> Path:
        """The folder in which failpoints of the reapers are armed."""
        return self.folder / "failpoints"

    @property
    def reaper_settings(self) -> Path:
        """The settings file of the reapers: what they read again when they are told to."""
        return self.folder / "reaper.toml"

    def set_visibility(self, seconds: float) -> None:
        """Write the visibility timeout that reapers read, at their start or when they are told to.

        Where the group is to be destroyed, or a consumer deleted, they know well where it stood and who held what, and
        put back what they watched.
        """
        lines, kinds = [f"visibility_timeout = {seconds!r}"], {fault.kind for fault in self.settings.faults}
        if kinds & {FaultKind.DESTROY_GROUP, FaultKind.DELETE_CONSUMER}:
            lines += ["recreate_groups = true", "full_scan_interval = 1"]
        self.reaper_settings.write_text("\n".join([*lines, ""]), encoding="utf-8")

    def ledger_of(self, name: str) -> Path:
        """The file in which process ``name`` writes its jobs' lines."""
        return self.folder / f"{name}.out"


def set_stage(
    client: Redis,
    server: Server,
    settings: DrillSettings,
    recovery: Recovery,
    folder: Path,
    run_id: str,
    tracing: "Tracing | None" = None,
    leaders: Redis | None = None,
) -> Stage:
    """Give the stage of one act, with its names, and make its folder."""
    stream, namespace = names_of(run_id, recovery)
    stage = Stage(
        client,
        server,
        settings,
        recovery,
        folder / recovery.name,
        group_keys(stream, GROUP),
        namespace_keys(namespace),
        tracing,
        leaders,
    )
    stage.failpoints.mkdir(parents=True)
    stage.set_visibility(settings.visibility_timeout.total_seconds())
    return stage


def names_of(run_id: str, recovery: Recovery) -> tuple[str, str]:
    """Choose the stream and the namespace of one act, which nobody else uses; in a cluster, two masters have them."""
    stream = f"drill-{run_id}-{recovery.name}"
    namespaces = (f"{stream}-reapers{number or ''}" for number in itertools.count())
    return stream, next(name for name in namespaces if share_of(name) != share_of(stream))


def new_run_id() -> str:
    """Return a short name for one run of the drill."""
    return secrets.token_hex(4)
