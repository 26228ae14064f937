"""Questions to Redis that only faults of the soak ask."""

import json

from reaper.drill import queries
from reaper.drill.stage import Stage
from workers.protocol.messages import pair_up, read_metadata


async def dead_letters(stage: Stage) -> int:
    """Return how many dead letters there are."""
    return int(await stage.client.xlen(stage.keys.dead))


async def parked(stage: Stage) -> int:
    """Return how many jobs lie in the group's schedule."""
    return int(await stage.client.zcard(stage.keys.schedule))


async def full_scan_ms(stage: Stage) -> int:
    """Return when a leader has last looked at the whole group, as replicas register it, in ms of the server's clock."""
    moments = [0]
    for heartbeat in await stage.namespace_client.hvals(stage.namespace.replicas):
        group = json.loads(heartbeat)["groups"].get(stage.keys.pair, {})
        moments.append(int(group.get("last_full_scan_ms", 0)))
    return max(moments)


async def anything_lost_before(stage: Stage, before: queries.View) -> bool:
    """Tell whether a job that waits or runs has lost a delivery. ``before``: an earlier view, as for `look`."""
    view = await queries.look(stage, before)
    entries = await stage.client.execute_command("XRANGE", stage.keys.stream, b"(" + view.last_delivered, "+")
    if any(read_metadata(entry_id, pair_up(flat)).deliveries for entry_id, flat in entries):
        return True
    rows = await queries.pending(stage)
    held = await queries.fields_of(stage, [row.entry_id for row in rows])
    return any(
        row.delivery_count > 1 or read_metadata(row.entry_id, fields.items()).deliveries
        for row, fields in zip(rows, held, strict=True)
    )
