"""Questions to Redis that only faults of the soak ask."""

from collections.abc import Sequence

from reaper.drill import queries
from reaper.drill.stage import Stage
from reaper.drill.toolbox import Toolbox
from workers.protocol.events import EventName
from workers.protocol.messages import Pending, pair_up, read_metadata, text


async def dead_letters(stage: Stage) -> int:
    """Return how many dead letters there are."""
    return int(await stage.client.xlen(stage.keys.dead))


async def quarantined(stage: Stage) -> int:
    """Return how many jobs lie in the group's schedule."""
    return int(await stage.client.zcard(stage.keys.schedule))


async def are_held_again(tools: Toolbox, dropped: Sequence[Pending]) -> bool:
    """Tell whether each of these deliveries is pending again, or settled."""
    settled = {event.data.get("entry") for event in tools.witness.events if event.event == EventName.ACKED}
    pending = {row.entry_id for row in await queries.pending(tools.stage)}
    return all(row.entry_id in pending or text(row.entry_id) in settled for row in dropped)


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
