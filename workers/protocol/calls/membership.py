"""A worker joins its group, and removes consumers without deliveries."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from redis.asyncio import Redis

from workers.protocol.connection import KeptConnection
from workers.protocol.keys import GroupKeys
from workers.protocol.messages import RecoveryMode, Redelivery, text, whole_number
from workers.protocol.scripts import load_script

JOIN_GROUP = load_script("workers.protocol", "join_group")
DELETE_CONSUMER = load_script("workers.protocol", "delete_consumer")

DEFAULT_VISIBILITY_TIMEOUT = timedelta(seconds=30)
DEFAULT_MAX_DELIVERIES = 3
DEFAULT_REDELIVERY = Redelivery.STREAM
"""The values of a group whose processes set no others."""

_FIELD = "registration:"
_REGISTRATION = re.compile(r"(\d{1,15}),(.*)", re.DOTALL)

_POLICIES = {policy.value: policy for policy in Redelivery}
_RECOVERIES = {mode.value: mode for mode in RecoveryMode}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The values that all processes of the group use, from the group's settings or else our own."""

    redelivery: Redelivery
    visibility_timeout: timedelta
    max_deliveries: int
    recovery: RecoveryMode
    reads_retries: bool
    """There is a retry stream to read, or there will be one."""

    @property
    def visibility_ms(self) -> int:
        """The visibility timeout, as scripts take it."""
        return round(self.visibility_timeout / timedelta(milliseconds=1))

    def facts(self) -> dict[str, object]:
        """Return the fields of a log line, with the names of the group's hash."""
        return {
            "policy": self.redelivery,
            "visibility_ms": self.visibility_ms,
            "max_deliveries": self.max_deliveries,
            "recovery": self.recovery,
            "reads_retries": self.reads_retries,
        }


def complaints(group_settings: Mapping[str, str], now_ms: int) -> list[str]:
    """Return how the settings of live workers differ from the group's, by their registrations."""
    values = [value for field, value in group_settings.items() if field.startswith(_FIELD)]
    found = map(_REGISTRATION.fullmatch, values)
    return [one[2] for one in found if one and int(one[1]) > now_ms]


@dataclass(frozen=True, slots=True)
class Joined:
    """A group that a worker has joined. Assumed settings replace invalid group settings."""

    group_settings: GroupSettings
    created_at: str
    """The entry ID at which the group begins, if this call created it."""
    server_ms: int
    mismatch: str
    """How the worker's settings differ from the group's."""
    served_ms: int
    """Time until the lease of the group may be free, or 0."""
    begins: bool
    """Recovery by the workers begins with this call."""


async def join_group(
    client: Redis | KeptConnection,
    keys: GroupKeys,
    *,
    start: str,
    redelivery: Redelivery | None,
    visibility_ms: int | None,
    max_deliveries: int | None,
    recovery: RecoveryMode,
    assumed: GroupSettings,
    name: str,
    consumer: str,
    counts_for_ms: int,
    begins: bool,
) -> Joined:
    """Join, register, and create missing parts of the group (``join_group.lua``). Raises redis-py's errors.

    A group that is created begins at ``start``. Settings of None follow the group. The script writes the ``assumed``
    settings if the group has none. The record of a mismatch has the worker's ``name``. The registration lasts for
    ``counts_for_ms``. With ``begins``, the worker has no deliveries yet.
    """
    policy, visibility, limit, mode, reads_retries, *rest = await JOIN_GROUP.run_idempotent(
        client,
        (keys.stream, keys.retry, keys.settings, keys.lease),
        (
            keys.group, start, redelivery or "", visibility_ms or "", max_deliveries or "", recovery,
            assumed.redelivery, assumed.visibility_ms, assumed.max_deliveries, recovery,
            name, consumer, counts_for_ms, int(begins),
        ),
    )  # fmt: skip
    created_at, server_ms, mismatch, served_ms, is_first = rest
    group_settings = GroupSettings(
        redelivery=_POLICIES.get(text(policy), assumed.redelivery),
        visibility_timeout=timedelta(milliseconds=whole_number(visibility, 0) or assumed.visibility_ms),
        max_deliveries=whole_number(limit, 0) or assumed.max_deliveries,
        recovery=_RECOVERIES.get(text(mode), recovery),
        reads_retries=reads_retries == 1,
    )
    return Joined(group_settings, text(created_at), server_ms, text(mismatch), served_ms, is_first == 1)


async def delete_consumers(client: Redis, source: str, keys: GroupKeys, consumers: Sequence[str]) -> None:
    """Delete those of ``consumers`` that hold no delivery of ``source`` (``delete_consumer.lua``).

    Their registrations go with their consumers of the stream. Consumers of the retry stream have none.
    """
    if consumers:
        words = (keys.settings,) if source == keys.stream else ()
        await DELETE_CONSUMER.run(client, (source, *words), (keys.group, *consumers))
