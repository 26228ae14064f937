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
"""What holds where nobody has said otherwise."""

_MEMBER = "member:"
_REGISTRATION = re.compile(r"(\d{1,15}),(.*)", re.DOTALL)

_POLICIES = {policy.value: policy for policy in Redelivery}
_RECOVERIES = {mode.value: mode for mode in RecoveryMode}


@dataclass(frozen=True, slots=True)
class Agreement:
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


@dataclass(frozen=True, slots=True)
class Registration:
    """The registration of a worker in its group, with the group settings that it has read or assumes."""

    consumer: str
    counts_for_ms: int
    version: int
    """Of the agreement that it has joined; 0 = none, or one without a visibility timeout."""
    begins: bool
    """It has just started, and holds nothing."""
    redelivery: Redelivery
    visibility_ms: int
    max_deliveries: int
    """What it goes by where nothing is agreed on."""


def complaints(agreement: Mapping[str, str], now_ms: int) -> list[str]:
    """Return how the settings of live workers differ from the group's, by their registrations."""
    found = [_REGISTRATION.fullmatch(value) for field, value in agreement.items() if field.startswith(_MEMBER)]
    return [one[2] for one in found if one and int(one[1]) > now_ms]


@dataclass(frozen=True, slots=True)
class Joined:
    """A group that a worker has joined. Invalid group settings are replaced by those of its registration."""

    agreement: Agreement
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
    """Recovery by the workers begins with us."""
    version: int
    """Of the agreement; 0 = nothing is agreed on."""


async def join_group(
    client: Redis | KeptConnection,
    keys: GroupKeys,
    *,
    start: str,
    redelivery: Redelivery | None,
    visibility_ms: int | None,
    max_deliveries: int | None,
    recovery: RecoveryMode,
    name: str,
    registration: Registration,
) -> Joined:
    """Join the group, and create missing parts (``join_group.lua``). A value of None follows the group.

    ``start`` is the start of a new group. ``name`` is the worker's, for the record of a mismatch. ``registration`` has
    the values that it uses. Raises what redis-py raises.
    """
    reply = await JOIN_GROUP.run_idempotent(
        client,
        (keys.stream, keys.retry, keys.agreement, keys.lease),
        (
            keys.group, start, redelivery or "", visibility_ms or "", max_deliveries or "", recovery, name,
            registration.consumer, registration.counts_for_ms, registration.version, int(registration.begins),
            registration.redelivery, registration.visibility_ms, registration.max_deliveries,
        ),
    )  # fmt: skip
    agreement = Agreement(
        redelivery=_POLICIES.get(text(reply[0]), registration.redelivery),
        visibility_timeout=timedelta(milliseconds=whole_number(reply[1], 0) or registration.visibility_ms),
        max_deliveries=whole_number(reply[2], 0) or registration.max_deliveries,
        recovery=_RECOVERIES.get(text(reply[3]), recovery),
        reads_retries=reply[4] == 1,
    )
    return Joined(
        agreement,
        created_at=text(reply[5]),
        groups=reply[6],
        server_ms=reply[7],
        mismatch=text(reply[8]),
        served_ms=reply[9],
        begins=reply[10] == 1,
        version=reply[11],
    )


async def delete_consumers(client: Redis, source: str, keys: GroupKeys, consumers: Sequence[str]) -> None:
    """Delete those of ``consumers`` that hold no delivery of ``source`` (``delete_consumer.lua``).

    Their registrations go with their consumers of the stream. Consumers of the retry stream have none.
    """
    if consumers:
        words = (keys.agreement,) if source == keys.stream else ()
        await DELETE_CONSUMER.run(client, (source, *words), (keys.group, *consumers))
