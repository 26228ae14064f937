"""Makes dead letters as a reaper makes them: by ``recover``, from quarantined jobs that were released."""

from typing import Any

from tests.scripts.scene import Scene, Word
from workers.protocol.messages import text

PAIR = ("orders/billing",)
USER_FIELDS = ("b", b"\xff\x00\r\n\xc3(", "a", "1", "b", "again", "traceparent", "00-11-22-01")


async def give_up(scene: Scene, *flat: Word) -> str:
    """Dead-letter one job with these user fields; returns the dead letter's ID."""
    entry = await scene.doomed(*(flat or USER_FIELDS))
    reply = await scene.recover(entry)
    [told] = reply[4]
    assert (told[1], told[-2]) == (b"dead_lettered", b"new_entry"), reply
    return text(told[-1])


async def give_up_many(scene: Scene, number: int) -> list[str]:
    """Dead-letter ``number`` jobs; returns the IDs of the dead letters, oldest first."""
    return [await give_up(scene, "n", one) for one in range(number)]


async def reject(scene: Scene, reason: str, *flat: Word) -> str:
    """Write a dead letter as a worker's rejection leaves it; returns its ID."""
    fields: list[Word] = [*(flat or ("n", 1)), "reaper.job", f"job-{reason}", "reaper.deliveries", 1]
    fields += ["reaper.dead.stream", "orders", "reaper.dead.group", "billing", "reaper.dead.reason", reason]
    return text(await scene.client.execute_command("XADD", scene.keys.dead, "*", *fields))


async def redriven_often(scene: Scene, generation: int) -> str:
    """Write a dead letter whose job has been redriven ``generation`` times; returns its ID."""
    words: tuple[Word, ...] = ("n", 1, "reaper.job", "looper", "reaper.generation", generation)
    return text(await scene.client.execute_command("XADD", scene.keys.dead, "*", *words))


async def ids_of(scene: Scene, key: str) -> list[str]:
    """Return the IDs of a stream's entries."""
    entries: Any = await scene.client.xrange(key)
    return [text(one) for one, _ in entries]
