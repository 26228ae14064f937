"""A typed call for each script of the lease of a group, and its results."""

from dataclasses import dataclass
from typing import Any

from tests.scripts.scene import Scene
from workers.protocol.calls import GroupCalls
from workers.protocol.scripts import load_script

TTL_MS = 10_000
HOUR_MS = 3_600_000
"""A lease that no busy machine lets expire."""


def holder_of(replica: str, nonce: str = "1", ttl_ms: int = TTL_MS) -> str:
    """Return a value of the lease."""
    return f"{replica}.{nonce * 16}@{ttl_ms}"


@dataclass(frozen=True)
class Taken:
    """The answer to an attempt that won."""

    token: int
    unsupported: str
    before: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """The answer to an attempt that did not win."""

    holder: str
    left_ms: int


async def take(
    scene: Scene,
    holder: str,
    *,
    ttl_ms: int = TTL_MS,
    policy: str = "stream",
    visibility_ms: int = 30_000,
    max_deliveries: int = 3,
    token: int = 0,
) -> Taken | Held:
    """Run ``lease_take``."""
    words = GroupCalls(scene.keys, 1_000).spell(
        "orders", holder, ttl_ms, holder.rpartition(".")[0], policy, visibility_ms, max_deliveries, token,
        more_keys=[scene.keys.lease],
    )  # fmt: skip
    won, *reply = await load_script("reaper", "lease_take").run(scene.client, *words)
    if not won:
        return Held(_text(reply[0]), reply[1])
    token, at_ms, unsupported, *before = reply
    assert abs(at_ms - await scene.now_ms()) < 5_000
    return Taken(token, _text(unsupported), tuple(map(_text, before)))


async def taken(scene: Scene, holder: str, **options: Any) -> Taken:
    """Run ``lease_take``, which has to win."""
    answer = await take(scene, holder, **options)
    assert isinstance(answer, Taken), answer
    return answer


async def tick(
    scene: Scene,
    holder: str,
    *,
    ttl_ms: int = TTL_MS,
    after: str = "-",
    retry_after: str = "",
    page: int = 100,
    scans: bool = False,
) -> Any:
    """Run ``tick``."""
    keys = scene.keys
    return await load_script("reaper", "tick").run(
        scene.client,
        [keys.stream, keys.settings, keys.journal, keys.retry, keys.lease, keys.schedule, keys.stream_schedule],
        [holder, ttl_ms, keys.group, after, retry_after, page, int(scans)],
    )


async def hand(scene: Scene, holder: str, to: str) -> Any:
    """Run ``lease_hand``."""
    keys = scene.keys
    return await load_script("reaper", "lease_hand").run(
        scene.client,
        [keys.lease, keys.settings, keys.journal],
        [keys.group, 1_000, holder, to, 2_000, "stopped"],
    )


async def found(scene: Scene) -> str | None:
    """Return the lease."""
    value: Any = await scene.client.get(scene.keys.lease)
    return None if value is None else _text(value)


async def expire(scene: Scene) -> None:
    """Let the lease expire."""
    await scene.client.pexpire(scene.keys.lease, 0)


def _text(value: bytes) -> str:
    return value.decode()
