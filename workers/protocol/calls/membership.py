"""A worker joins its group, and clears away consumers that hold nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from redis.asyncio import Redis

from workers.protocol.keys import GroupKeys
from workers.protocol.messages import RecoveryMode, Redelivery, text, whole_number
from workers.protocol.scripts import load_script

JOIN_GROUP = load_script("workers.protocol", "join_group")
DELETE_CONSUMER = load_script("workers.protocol", "delete_consumer")

_POLICIES = {policy.value: policy for policy in Redelivery}
_MODES = {mode.value: mode for mode in RecoveryMode}


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all processes of the group go by: agreed values, and ours where nothing was agreed."""

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


@dataclass(frozen=True, slots=True)
class Joined:
    """What the group has agreed on: None or 0 where nobody has set a value, or has set it to nonsense."""

    redelivery: Redelivery | None
    visibility_ms: int
    max_deliveries: int
    recovery: RecoveryMode | None
    reads_retries: bool
    """There is a retry stream to read, or there will be one."""
    created_at: str
    """Where the group begins, if it was made by this call."""
    groups: int
    """Groups of the stream."""
    server_ms: int
    mismatch: str
    """In what our settings differ."""
    served_ms: int
    """For how long a leader is sure to serve the group; 0 = none is."""
    begins: bool
    """Embedded recovery begins with us."""


async def join_group(
    client: Redis,
    keys: GroupKeys,
    *,
    start: str,
    redelivery: Redelivery | None,
    visibility_ms: int | None,
    max_deliveries: int | None,
    recovery: RecoveryMode,
    name: str,
) -> Joined:
    """Join the group, making what is missing (``join_group.lua``); a value that is None follows the group.

    ``start``: where a new group begins; ``name``: the worker's, for the record of a mismatch.
    """
    reply = await JOIN_GROUP.run_idempotent(
        client,
        (keys.stream, keys.retry, keys.agreement, keys.fence),
        (keys.group, start, redelivery or "", visibility_ms or "", max_deliveries or "", recovery, name),
    )
    return Joined(
        redelivery=_POLICIES.get(text(reply[0])),
        visibility_ms=whole_number(reply[1], 0),
        max_deliveries=whole_number(reply[2], 0),
        recovery=_MODES.get(text(reply[3])),
        reads_retries=reply[4] == 1,
        created_at=text(reply[5]),
        groups=reply[6],
        server_ms=reply[7],
        mismatch=text(reply[8]),
        served_ms=reply[9],
        begins=reply[10] == 1,
    )


async def delete_consumers(client: Redis, source: str, group: str, consumers: Sequence[str]) -> None:
    """Delete those of ``consumers`` that hold nothing (``delete_consumer.lua``)."""
    if consumers:
        await DELETE_CONSUMER.run(client, (source,), (group, *consumers))
