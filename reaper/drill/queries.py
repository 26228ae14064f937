"""Reads the state of Redis for a drill."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from reaper.drill.stage import Stage
from workers.protocol.meaning import Meaning, meaning_of
from workers.protocol.messages import Pending, entry_order, pair_up, read_metadata, text

MOST = 1_000_000
"""Pending entries to read. A drill has fewer jobs."""


@dataclass(frozen=True, slots=True)
class View:
    """The state of Redis at one moment."""

    ready: int = 0
    in_flight: int = 0
    quarantined: int = 0
    dead: int = 0
    holder: str = ""
    """The holder of the lease. Empty if no reaper holds it."""
    last_delivered: bytes = b"0-0"
    """The group's position in the stream."""

    @property
    def outstanding(self) -> int:
        """Jobs that are neither settled nor dead-lettered."""
        return self.ready + self.in_flight + self.quarantined


async def look(stage: Stage, before: View) -> View:
    """Return the state of Redis now. It is read in one transaction, so no job that moves is overlooked.

    The stream is read from the position of the view ``before``, because the present one is only known with the reply.
    While the group is destroyed, or Redis is full and takes no transaction, the view is as before, with work left.
    """
    keys = stage.keys
    pipeline = stage.client.pipeline(transaction=True)
    pipeline.execute_command("XPENDING", keys.stream, keys.group)
    pipeline.zcard(keys.schedule)
    pipeline.xlen(keys.dead)
    pipeline.xinfo_groups(keys.stream)
    pipeline.execute_command("XRANGE", keys.stream, b"(" + before.last_delivered, "+")
    try:
        replies = await pipeline.execute(raise_on_error=False)
    except OutOfMemoryError:
        return replace(before, ready=max(1, before.ready))
    for reply in replies:
        if is_gone(reply):
            return replace(before, ready=max(1, before.ready))
        if isinstance(reply, Exception):
            raise reply
    pending, quarantined, dead, groups, entries = replies
    last = _last_delivered(stage, groups)
    if entry_order(last) < entry_order(before.last_delivered):  # the group was created again, at an earlier position
        return await look(stage, View())
    ready = sum(entry_order(entry_id) > entry_order(last) for entry_id, _ in entries)
    return View(ready, pending[0], quarantined, dead, await holder(stage), last)


def is_gone(reply: object) -> bool:
    """Tell whether Redis answered that the group does not exist."""
    return isinstance(reply, ResponseError) and meaning_of(reply) is Meaning.NO_GROUP


def _last_delivered(stage: Stage, groups: Sequence[Mapping[Any, Any]]) -> bytes:
    """Return the group's position in an ``XINFO GROUPS`` reply. Its keys are bytes or str, by version of redis-py."""
    for group in groups:
        facts = {text(name): value for name, value in group.items()}
        if text(facts["name"]) == stage.keys.group:
            return text(facts["last-delivered-id"]).encode()
    return b"0-0"


async def waiting_readers(stage: Stage) -> int:
    """Return how many clients of this Redis wait in an ``XREADGROUP``.

    A worker that waits for its first job is visible only there, because before Redis 7.2 it is no consumer yet.
    """
    clients = await stage.client.client_list()
    return sum("b" in text(client["flags"]) and text(client["cmd"]) == "xreadgroup" for client in clients)


async def holder(stage: Stage) -> str:
    """Return the holder of the group's lease. Empty if no reaper holds it, also while it is offered to one."""
    found = text(await stage.client.get(stage.keys.lease) or b"")
    return "" if found.startswith("offer:") else found


def belongs_to(name: str, process: str) -> bool:
    """Tell whether a consumer or holder is ``process``. A nonce may follow its name, after ``~`` or ``-``."""
    return name == process or name.startswith((f"{process}~", f"{process}-"))


async def pending(stage: Stage) -> list[Pending]:
    """Return the whole pending entries list. Empty while the group is destroyed."""
    try:
        rows = await stage.client.execute_command("XPENDING", stage.keys.stream, stage.keys.group, "-", "+", MOST)
    except ResponseError as error:
        if is_gone(error):
            return []
        raise
    return [Pending(*row) for row in rows]


async def pending_by_process(stage: Stage, processes: Sequence[str]) -> dict[str, list[Pending]]:
    """Return the deliveries of each process."""
    rows = await pending(stage)
    return {name: [row for row in rows if belongs_to(text(row.consumer), name)] for name in processes}


async def fields_of(stage: Stage, entry_ids: Sequence[bytes]) -> list[dict[bytes, bytes]]:
    """Return the fields of entries of the stream. Empty if an entry is gone."""
    pipeline = stage.client.pipeline(transaction=False)
    for entry_id in entry_ids:
        pipeline.execute_command("XRANGE", stage.keys.stream, entry_id, entry_id)
    return [dict(pair_up(reply[0][1])) if reply else {} for reply in await pipeline.execute()]


async def must_not_crash(stage: Stage, rows: Sequence[Pending]) -> bool:
    """Tell whether one of these deliveries is the last one of its job, or of a poison job."""
    limit = stage.settings.max_deliveries
    for row, fields in zip(rows, await fields_of(stage, [row.entry_id for row in rows]), strict=True):
        before = read_metadata(row.entry_id, fields.items()).deliveries
        if before + row.delivery_count >= limit or b"poison" in fields:
            return True
    return False


async def forget(stage: Stage) -> None:
    """Delete every key of this act in a Redis of the user."""
    keys, namespace = stage.keys, stage.namespace
    await stage.client.unlink(
        keys.stream, keys.retry, keys.stream_schedule, keys.schedule, keys.dead, keys.lease, keys.settings,
        keys.quarantine, keys.journal, namespace.replicas, namespace.live, namespace.drained, namespace.journal,
    )  # fmt: skip
