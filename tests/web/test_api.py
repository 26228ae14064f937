"""The data that the status page gets. Nothing can be changed through it."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.replicas import MOST_BYTES
from reaper.web.app import page_and_policy
from tests.faults.scene import KEYS, NAMESPACE, Handler, create_group, enqueue, running_worker, strand
from tests.support.http import request
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.web.conftest import Served, served_replica

pytestmark = pytest.mark.anyio

MANY = [f"mail-{number:02}" for number in range(40)]


async def test_of_many_groups_only_the_worst_are_on_the_page(server: RedisServer, client: Redis) -> None:
    for stream in MANY[1:]:  # the first one is missing
        await client.xgroup_create(stream, "sender", "0", mkstream=True)
    async with served_replica(server.url, groups=",".join(f"{stream}/sender" for stream in MANY)) as served:

        async def all_held() -> Any:
            found = await _overview(served)
            counts = found["patterns"][0] if found["patterns"] else {}
            return found if (counts.get("held"), counts.get("problems")) == (40, {"disabled": 1}) else None

        found = await wait_until(all_held, "the replica says that it holds all groups, and that one is missing")
        assert (len(found["groups"]), found["left_out"], found["replicas"][0]["held"]) == (20, 20, 40)
        assert [group["group"] for group in found["groups"] if not group["main"]["exists"]] == ["mail-00/sender"]
        assert {(one["group"], one["check"]) for one in found["problems"]} == {("mail-00/sender", "disabled")}
        word: Any = await client.hget(NAMESPACE.replicas, served.reaper.replica_id)
        watched: Any = await client.hget(NAMESPACE.groups, served.reaper.replica_id)
        assert len(word) <= MOST_BYTES
        assert watched.decode().split() == [f"{stream}/sender" for stream in MANY]
        assert len(json.dumps(found)) < 50_000


async def _overview(served: Served) -> Any:
    reply = await served.get("/status")
    assert reply.code == 200
    return reply.data


# --- the content


async def test_an_observer_shows_a_group_whose_workers_recover_by_themselves(
    server: RedisServer, client: Redis
) -> None:
    await create_group(client)
    await enqueue(client, 3)
    await strand(client, 3, overdue=True)
    handler = Handler()
    async with (
        running_worker(server.url, handler, recovery="embedded", visibility_timeout=0.4),
        served_replica(server.url, observe=True) as served,
    ):
        await wait_until(lambda: len(handler.completions) == 3, "the workers recover")
        found = await _overview(served)
        assert (found["status"], found["problems"]) == ("healthy", [])
        assert [(group["mode"], group["recovered"]) for group in found["groups"]] == [("embedded", 3)]


async def test_replicas_and_the_holder_are_told(served: Served) -> None:
    async def registered() -> Any:
        """The replica registers again just after it has taken the lease."""
        found = await _overview(served)
        return (
            found
            if [(one["id"], one["held"]) for one in found["replicas"]] == [(served.reaper.replica_id, 1)]
            else None
        )

    found = await wait_until(registered, "the replica is listed with the group that it holds")
    assert [(one["served_by"], one["token"]) for one in found["groups"]] == [(served.reaper.replica_id, 1)]


async def test_a_job_is_explained(served: Served, client: Redis) -> None:
    [entry] = await enqueue(client, 1)
    [told] = (await served.get(f"/api/job?id={entry}")).data
    assert (told["group"], told["place"], told["entry_id"]) == (KEYS.name, "ready", entry)
    assert (await served.get("/api/job?id=nobody")).data == []


@pytest.mark.parametrize("query", ["", "?id=", "?id=" + "x" * 301])
async def test_a_question_without_a_job_is_rejected(served: Served, query: str) -> None:
    assert (await served.get(f"/api/job{query}")).code == 400


async def test_who_only_looks_changes_nothing(served: Served, client: Redis) -> None:
    await client.xadd(KEYS.dead, {"n": 1, "reaper.job": "declined-1", "reaper.dead.reason": "declined"})
    await wait_until(lambda: client.exists(KEYS.settings), "a replica has taken the group")
    keys = {key async for key in client.scan_iter()}
    before = await client.xrange(KEYS.dead)
    for path in ("/", "/status", "/api/job?id=x", "/readyz"):
        await served.get(path)
    assert await client.xrange(KEYS.dead) == before
    assert {key async for key in client.scan_iter()} == keys


def test_the_page_brings_everything_along_and_nothing_else_may_run() -> None:
    page, policy = page_and_policy()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.count("<script>") == page.count("<style>") == 1
    assert "src=" not in page.replace('"data:,"', "")
    for forbidden in ("http://", "https://", "innerHTML", "outerHTML", "document.write", "eval("):
        assert forbidden not in page.replace("http://www.w3.org/2000/svg", ""), forbidden


async def test_the_page_may_not_be_framed_or_kept(served: Served) -> None:
    headers = (await served.get("/")).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")


@pytest.mark.parametrize("path", ["/", "/status", "/api/job", "/api/pause", "/api/redrive"])
async def test_nothing_can_be_sent(served: Served, path: str) -> None:
    reply = await request(served.port, path, method="POST", body="{}", Content_Type="application/json")
    assert reply.code in (404, 405)
