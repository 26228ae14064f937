"""The leader tells what a full scan found, and an earlier leader tells nothing any more."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.recovery.writer import GroupWriter
from reaper.settings import ReaperSettings
from tests.scripts.scene import FENCE, Scene
from workers.protocol.calls import Journal
from workers.protocol.calls.refusals import Refusal, RefusalKind
from workers.protocol.calls.upkeep import Authority

pytestmark = pytest.mark.anyio

FOUND = {"visibility_ms": 30_000, "pending": 2, "gone": 1, "gone_ages": [[8, None, 1]]}


@pytest.fixture
async def scene(client: Redis) -> Scene:
    prepared = Scene(client)
    await prepared.prepare()
    return prepared


def writer(client: Redis, token: int = 7) -> GroupWriter:
    (group,) = ReaperSettings(groups="orders/billing").watched
    return GroupWriter(
        client=client,
        group=group,
        authority=Authority(namespace="reaper", token=token, holder="alice"),
        journal=Journal(1, 1_000),
    )


async def journal(client: Redis) -> list[tuple[str, str, Any]]:
    """Return name, job and data of each event."""
    rows: Any = await client.xrange("{orders}:journal")
    return [(flat[1].decode(), flat[3].decode(), json.loads(flat[5])) for _, flat in rows]


async def test_a_leader_journals_what_its_scan_found(scene: Scene) -> None:
    before = await scene.state()
    assert await writer(scene.client).journal_scan(FOUND) is None
    assert await journal(scene.client) == [
        ("scanned", "", {"v": 1, "group": "billing", "mode": "reaper", "token": 7, **FOUND})
    ]
    await scene.client.delete("{orders}:journal")
    assert await scene.state() == before


async def test_a_leader_of_an_earlier_term_tells_nothing(scene: Scene) -> None:
    before = await scene.state()
    assert await writer(scene.client, token=6).journal_scan(FOUND) == Refusal(RefusalKind.STALE, FENCE)
    assert await scene.state() == before


async def test_without_a_fence_nobody_tells_anything(scene: Scene) -> None:
    await scene.client.delete(scene.keys.fence)
    assert await writer(scene.client).journal_scan(FOUND) == Refusal(RefusalKind.STALE, "")
    assert await journal(scene.client) == []


async def test_a_journal_that_is_no_stream_is_no_error(scene: Scene) -> None:
    await scene.client.set(scene.keys.journal, "taken")
    assert await writer(scene.client).journal_scan(FOUND) is None
