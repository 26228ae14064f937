"""Settings of a reaper replica. `reaper.cli` reads them. Programs pass values."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from workers.protocol.calls.membership import DEFAULT_MAX_DELIVERIES, DEFAULT_REDELIVERY, DEFAULT_VISIBILITY_TIMEOUT
from workers.protocol.errors import ConfigurationError
from workers.protocol.events import DEFAULT_JOURNAL_MAXLEN
from workers.protocol.keys import GroupKeys, NamespaceKeys, group_keys, namespace_keys, split_group
from workers.protocol.messages import MAX_DELIVERIES_LIMIT, Redelivery
from workers.runtime.settings import (
    SHORTEST_INTERVAL,
    SHORTEST_VISIBILITY,
    HealthHost,
    JournalMaxlen,
    ProgramSettings,
    Seconds,
    Section,
    seconds,
)

SHORTEST_LEASE = timedelta(seconds=0.5)
"""A shorter one would expire on a busy machine."""
SHORTEST_DERIVED_LEASE = timedelta(seconds=1)
"""A short visibility timeout does not make a lease shorter than this."""
LEASES = 4
"""Leases that fit into a visibility timeout, so that a failover is no gap in the heartbeats."""
TICKS = 3
"""Ticks in the time of a lease. Two of them may fail."""
QUICKEST_REGISTRATION, REGISTRATION, REGISTRATIONS = timedelta(seconds=0.2), timedelta(seconds=1.25), 6
"""The shortest and the longest time between two registrations of a replica, and their number in a lease.

A replica that missed three is not alive. Its leases expire later than that.
"""
HEARTBEAT = timedelta(seconds=5)
DISCOVERY = timedelta(seconds=60)
WILDCARD = "*"
"""Stands for any characters in the pattern of a stream."""
_OBSERVE = "-observe"
LONGEST_VISIBILITY_MS = 7 * 86_400_000
"""The longest visibility timeout that a job may have of its own, unless its group has a longer one."""
MAX_REPLICA_NAME = 200


def observers_of(namespace: str) -> str:
    """Return the namespace of the observers of the groups of ``namespace``."""
    return f"{namespace}{_OBSERVE}"


def is_observers(namespace: str) -> bool:
    """Tell whether it is the namespace of observers."""
    return namespace.endswith(_OBSERVE)


class GroupSettings(Section):
    """One group, or a pattern for groups. Missing values come from `ReaperSettings`."""

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...

    stream: str = Field(description="Name of the stream, or a pattern for names, for example `orders:*`.")
    group: str = Field(description="Name of the consumer group that is watched.")
    exclude: tuple[str, ...] = Field(default=(), description="Patterns for streams that the pattern does not find.")
    visibility_timeout: Seconds | None = seconds(
        None, "Overrides `visibility_timeout` for this group.", least=SHORTEST_VISIBILITY
    )
    max_deliveries: int | None = Field(
        default=None, ge=1, le=MAX_DELIVERIES_LIMIT, description="Overrides `max_deliveries` for this group."
    )
    redelivery: Redelivery | None = Field(default=None, description="Overrides `redelivery` for this group.")

    @property
    def keys(self) -> GroupKeys:
        """The Redis keys of the group. Keys of a pattern contain the wildcard."""
        return group_keys(self.stream, self.group)

    @property
    def is_pattern(self) -> bool:
        """Tell whether the stream is a pattern. Each stream that fits it and has the group is watched."""
        return WILDCARD in self.stream

    def finds(self, stream: str) -> bool:
        """Tell whether the pattern fits the name of a stream."""
        return _fits(self.stream, stream) and not any(_fits(pattern, stream) for pattern in self.exclude)

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        if WILDCARD in self.group:
            raise ValueError(f"group {self.group!r} contains '*'. Only stream can be a pattern")
        if self.exclude and not self.is_pattern:
            raise ValueError(f"exclude has no effect: stream {self.stream!r} is no pattern. Use one such as 'orders:*'")
        return self


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split(WILDCARD))), name) is not None


def redis_pattern(name: str) -> str:
    """Return a name or pattern in the syntax of Redis, which has more wildcards."""
    return re.sub(r"([?\[\]^\\])", r"\\\1", name)


class WatchedGroup(GroupSettings):
    """A group with all values."""

    pattern: str = ""
    """The pattern that found the group, as ``orders:*/billing``. Empty if the group is named."""
    visibility_timeout: timedelta
    max_deliveries: int
    redelivery: Redelivery


def _read_groups(value: Any) -> Any:
    """Accept ``orders/billing,orders/audit`` (flags, environment) beside a list of tables (TOML)."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return tuple(_read_group(item) if isinstance(item, str) else item for item in value)
    raise ValueError("Write STREAM/GROUP, for example orders/billing, or [[groups]] tables")


def _read_group(name: str) -> dict[str, str]:
    if not (names := split_group(name)):
        raise ValueError(f"{name!r} is not a group. Write STREAM/GROUP, for example orders/billing")
    return {"stream": names[0], "group": names[1]}


class ReaperSettings(ProgramSettings):
    """Settings of one replica. A duration is a text with a unit (``30s``), or seconds."""

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...

    groups: Annotated[tuple[GroupSettings, ...], NoDecode, BeforeValidator(_read_groups)] = Field(
        default=(),
        description="The groups to watch: `[[groups]]` tables, or `stream/group,…` in one string.",
    )
    visibility_timeout: Seconds = seconds(
        DEFAULT_VISIBILITY_TIMEOUT.total_seconds(),
        "How long a delivery may go without a heartbeat before it is recovered. For plain workers, which send no "
        "heartbeats, it must be longer than the slowest job times the `COUNT` of their reads.",
        least=SHORTEST_VISIBILITY,
    )
    max_deliveries: int = Field(
        default=DEFAULT_MAX_DELIVERIES,
        ge=1,
        le=MAX_DELIVERIES_LIMIT,
        description="Counted deliveries of a job before it is dead-lettered.",
    )
    redelivery: Redelivery = Field(
        default=DEFAULT_REDELIVERY,
        description="How a recovered job becomes ready again: `stream` (copy to the end of the stream, whose only "
        "group this must be), `retry-stream` (copy to the group's retry stream) or `in-place` (no copy; needs Redis "
        "8.4, and workers that read with CLAIM, as those of stream-reaper do).",
    )
    observe: bool = Field(default=False, description="Scan and report, but write nothing to the streams.")
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the status page, `/livez`, `/readyz`, `/status` and `/metrics`. 0 takes a free port and "
        "logs it. Default: no port.",
    )
    journal: bool = Field(default=True, description="Write lifecycle events to the journal of the stream.")

    namespace: str = Field(
        default="reaper",
        description="Replicas with the same namespace share the groups.",
    )
    name: str = Field(
        default="",
        max_length=MAX_REPLICA_NAME,
        description="Begins the ID of this replica in `reaper status`. Default: the host name.",
    )
    lease_ttl: Seconds = seconds(
        10,
        "How long the lease of a group lasts without a renewal, at most. If the visibility timeout is less than 4 "
        "times as long, the lease is shorter.",
        least=SHORTEST_LEASE,
    )
    full_scan_interval: Seconds = seconds(
        30, "How often the whole pending entries list is scanned.", least=SHORTEST_INTERVAL
    )
    health_host: HealthHost = "127.0.0.1"
    journal_maxlen: JournalMaxlen = DEFAULT_JOURNAL_MAXLEN
    consumer_retention: Seconds | None = seconds(
        None, "Delete consumers that have no pending entry and were idle for this long. Default: never."
    )

    @field_validator("groups")
    @classmethod
    def _no_group_twice(cls, groups: tuple[GroupSettings, ...]) -> tuple[GroupSettings, ...]:
        names = Counter(group.keys.name for group in groups)  # build the keys here to reject invalid names
        for name, times in names.items():
            if times > 1:
                raise ValueError(f"{name!r} occurs twice. Name each group once")
        return groups

    @model_validator(mode="after")
    def _check_namespace(self) -> Self:
        namespace_keys(self.namespace_keys.namespace)  # raises ValueError for an invalid name
        return self

    @property
    def journal_limit(self) -> int:
        """Length of the journal, for scripts. 0 = none is written."""
        return self.journal_maxlen if self.journal else 0

    @property
    def namespace_keys(self) -> NamespaceKeys:
        """The keys of the replicas. Observers have their own, so that they do not hinder recovery."""
        return namespace_keys(observers_of(self.namespace) if self.observe else self.namespace)

    @property
    def watched(self) -> tuple[WatchedGroup, ...]:
        """The named groups, with the defaults filled in."""
        return tuple(self._filled(group, group.stream) for group in self.groups if not group.is_pattern)

    def watched_with(self, found: Mapping[str, str]) -> tuple[WatchedGroup, ...]:
        """Return all groups to watch, which are the named ones and those ``found`` in Redis.

        ``found`` has the pattern of each group (`reaper.watched`). The first pattern that fits gives the values.
        """
        watched, patterns = {group.keys.name: group for group in self.watched}, self.patterns
        for name, pattern in found.items():
            stream, group = split_group(name) or ("", "")
            fitting = next((one for one in patterns if one.group == group and one.finds(stream)), None)
            if name not in watched and (fitting or not pattern):
                values = fitting or GroupSettings(stream=stream, group=group)
                watched[name] = self._filled(values, stream, values.keys.name if pattern else "")
        return tuple(watched.values())

    @property
    def patterns(self) -> tuple[GroupSettings, ...]:
        """The groups that are patterns."""
        return tuple(group for group in self.groups if group.is_pattern)

    def _filled(self, group: GroupSettings, stream: str, pattern: str = "") -> WatchedGroup:
        # The values have been checked already.
        return WatchedGroup.model_construct(
            stream=stream,
            group=group.group,
            visibility_timeout=group.visibility_timeout or self.visibility_timeout,
            max_deliveries=group.max_deliveries or self.max_deliveries,
            redelivery=group.redelivery or self.redelivery,
            pattern=pattern,
        )

    def lease_of(self, visibility_timeout: timedelta) -> timedelta:
        """Return how long the lease of a group with this visibility timeout lasts without a tick."""
        return min(self.lease_ttl, max(SHORTEST_DERIVED_LEASE, visibility_timeout / LEASES))

    def tick_of(self, group: WatchedGroup) -> timedelta:
        """Return the time between two ticks, which extend the lease of a group and read its new deliveries.

        A timer must be armed well before it is due.
        """
        return min(
            self.lease_of(group.visibility_timeout) / TICKS, group.visibility_timeout / 4, self.full_scan_interval / 4
        )

    @property
    def registration(self) -> timedelta:
        """The time between two registrations of a replica."""
        own = [group.visibility_timeout for group in self.groups if group.visibility_timeout]
        shortest_lease = self.lease_of(min([self.visibility_timeout, *own]))
        return max(QUICKEST_REGISTRATION, min(REGISTRATION, shortest_lease / REGISTRATIONS))

    @property
    def heartbeat(self) -> timedelta:
        """The time between two heartbeats of a replica."""
        return HEARTBEAT

    @property
    def discovery(self) -> timedelta:
        """The time between two scans of Redis for streams that fit a pattern."""
        return DISCOVERY


def check_groups(settings: ReaperSettings) -> ReaperSettings:
    """Return ``settings`` if they watch anything. Raises ConfigurationError."""
    if not settings.groups:
        raise ConfigurationError(
            "cannot start: no groups are set. Name them, for example --groups orders/billing, "
            "REAPER_GROUPS=orders/billing, or a [[groups]] table with stream and group in the settings file."
        )
    return settings
