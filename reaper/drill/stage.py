"""The keys, the clients and the folder of an act."""

from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from reaper.drill.recoveries import Recovery
from reaper.drill.redis_server import Server
from reaper.drill.settings import DrillSettings
from workers.protocol.keys import GroupKeys, NamespaceKeys, group_keys, namespace_keys

GROUP = "workers"


@dataclass(frozen=True, slots=True)
class Stage:
    """The stream, group, namespace and folder of one act. It uses no other key of this Redis."""

    client: Redis
    """For the keys of the group."""
    namespace_client: Redis
    """For the keys of the namespace, which may be on another node."""
    server: Server
    settings: DrillSettings
    recovery: Recovery
    folder: Path
    keys: GroupKeys
    namespace: NamespaceKeys

    @property
    def failpoints(self) -> Path:
        """The folder in which failpoints of the reapers are armed."""
        return self.folder / "failpoints"

    @property
    def reaper_settings(self) -> Path:
        """The settings file of the reapers, which they read at their start."""
        return self.folder / "reaper.toml"

    def ledger_of(self, name: str) -> Path:
        """The file in which process ``name`` writes its jobs' lines."""
        return self.folder / f"{name}.out"


def set_stage(
    server: Server, settings: DrillSettings, recovery: Recovery, folder: Path, names: tuple[str, str]
) -> Stage:
    """Return the stage of one act, and make its folder. ``names`` are those of the stream and the namespace."""
    stream, namespace = group_keys(names[0], GROUP), namespace_keys(names[1])
    client = server.client(patience_s=settings.away_s, key=stream.stream)
    replicas = client if server.single else server.client(patience_s=settings.away_s, key=namespace.replicas)
    stage = Stage(client, replicas, server, settings, recovery, folder / recovery.name, stream, namespace)
    stage.failpoints.mkdir(parents=True)
    stage.reaper_settings.write_text(f"visibility_timeout = {settings.visibility_timeout.total_seconds()}\n", "utf-8")
    return stage
