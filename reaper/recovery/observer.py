"""Looks at pending entries without writing anything: what ``--observe`` reports."""

from collections.abc import Sequence

from redis.asyncio import Redis

from workers.protocol.messages import Pending


async def overdue_now(client: Redis, source: str, group: str, entry_ids: Sequence[bytes]) -> dict[bytes, Pending]:
    """Return the rows of ``entry_ids`` that are still pending. Raises what redis-py raises."""
    pipeline = client.pipeline(transaction=False)
    for entry_id in entry_ids:
        pipeline.execute_command("XPENDING", source, group, entry_id, entry_id, 1)
    replies = await pipeline.execute()
    return {rows[0][0]: Pending(*rows[0]) for rows in replies if rows}
