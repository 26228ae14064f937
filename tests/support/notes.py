"""Notes that handlers under test write into a stream."""

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from reaper.drill.promises import Execution
from workers.protocol.messages import pair_up, text


async def note(client: Redis, ledger: str, what: str, job: str, generation: int = 0) -> None:
    """Write down that a handler did ``what`` ("start" or "completion"): for handlers under test."""
    await client.xadd(ledger, {"what": what, "job": job, "generation": generation})


async def read_notes(client: Redis, ledger: str) -> tuple[list[Execution], list[Execution]]:
    """Return the starts and completions that handlers wrote into stream ``ledger``, in order."""
    rows: Any = await client.xrange(ledger)
    notes: list[Mapping[bytes, bytes]] = [dict(pair_up(flat)) for _, flat in rows]
    starts, completions = (
        [Execution(text(line[b"job"]), int(line[b"generation"])) for line in notes if line[b"what"] == what]
        for what in (b"start", b"completion")
    )
    return starts, completions


async def read_endings(client: Redis, ledger: str) -> list[Execution]:
    """Return the executions of which handlers noted, just before, that they fail, hang or end their process."""
    rows: Any = await client.xrange(ledger)
    notes: list[Mapping[bytes, bytes]] = [dict(pair_up(flat)) for _, flat in rows]
    return [Execution(text(line[b"job"]), int(line[b"generation"])) for line in notes if line[b"what"] == b"ending"]
