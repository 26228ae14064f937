"""What the status page is given, and what may be changed through it: only with the token, and nothing unknown."""

import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis.asyncio import Redis

from reaper.replicas import MOST_BYTES
from reaper.service import Reaper
from reaper.web.actions import is_token, read_token
from reaper.web.app import LARGEST_BODY, page_and_policy
from reaper.web.letters import LONGEST_VALUE
from reaper.web.serve import serving_health
from tests.faults.scene import (
    KEYS,
    NAMESPACE,
    STREAM,
    Handler,
    create_group,
    enqueue,
    holds,
    reaper_settings,
    running_worker,
    strand,
)
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.web.conftest import TOKEN, Served, served_replica
from workers.protocol.errors import ConfigurationError
from workers.protocol.server import capabilities_quietly, in_words

pytestmark = pytest.mark.anyio

PAIR = json.dumps({"group": KEYS.pair})


MANY = [f"mail-{number:02}" for number in range(40)]


async def test_of_many_groups_only_the_worst_are_on_the_page(server: RedisServer, client: Redis) -> None:
    for stream in MANY[1:]:  # the first one is missing
        await client.xgroup_create(stream, "sender", "0", mkstream=True)
    async with served_replica(server.url, groups=",".join(f"{stream}/sender" for stream in MANY)) as served:

        async def all_held() -> Any:
            found = await _overview(served)
            counts = found["patterns"][0] if found["patterns"] else {}
            return found if (counts.get("held"), counts.get("problems")) == (40, {"refused": 1}) else None

        found = await wait_until(all_held, "the replica says that it holds all groups, and that one is missing")
        assert (len(found["groups"]), found["left_out"], found["replicas"][0]["holds"]) == (20, 20, 40)
        assert [group["group"] for group in found["groups"] if not group["main"]["exists"]] == ["mail-00/sender"]
        assert {(one["group"], one["trouble"]) for one in found["problems"]} == {("mail-00/sender", "refused")}
        word: Any = await client.hget(NAMESPACE.replicas, served.reaper.replica_id)
        watched: Any = await client.hget(NAMESPACE.groups, served.reaper.replica_id)
        assert len(word) <= MOST_BYTES
        assert watched.decode().split() == [f"{stream}/sender" for stream in MANY]
        assert len(json.dumps(found)) < 50_000


async def _overview(served: Served) -> Any:
    reply = await served.get("/api/overview")
    assert reply.code == 200
    return reply.data


async def _give_up(client: Redis, number: int, reason: str) -> None:
    for one in range(number):
        await client.xadd(KEYS.dead, {"n": one, "reaper.job": f"{reason}-{one}", "reaper.dead.reason": reason})


# --- what it shows


async def test_recoveries_are_told_with_how_late_they_were(served: Served, client: Redis) -> None:
    await enqueue(client, 3)
    await strand(client, 3, overdue=True)

    async def told() -> Any:
        recoveries = (await _overview(served))["recoveries"]
        return recoveries if len(recoveries["latest"]) == 3 else None

    recoveries = await wait_until(told, "three recoveries are told")
    assert {one["event"] for one in recoveries["latest"]} == {"recovered"}
    lateness = [one["late_ms"] for one in recoveries["latest"]]
    assert min(lateness) >= 30_000
    assert recoveries["latency_ms"]["max"] == max(lateness)


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
        assert [one["event"] for one in found["recoveries"]["latest"]] == ["recovered"] * 3


async def test_replicas_and_consumers_are_told(served: Served, client: Redis) -> None:
    await enqueue(client, 2)
    await strand(client, 2, "w1")
    found = await _overview(served)
    assert [(one["id"], one["holds"]) for one in found["replicas"]] == [(served.reaper.replica_id, 1)]
    assert [(one["served_by"], one["token"]) for one in found["groups"]] == [(served.reaper.replica_id, 1)]
    assert [(one["name"], one["source"], one["pending"]) for one in found["consumers"]] == [("w1", STREAM, 2)]


async def test_dead_letters_are_grouped_by_reason_and_counted_anew_when_they_change(
    served: Served, client: Redis
) -> None:
    await _give_up(client, 3, "max_deliveries")
    await _give_up(client, 1, "declined")

    async def groups() -> list[tuple[str, int]]:
        return [(one["reason"], one["number"]) for one in (await _overview(served))["dead_letters"]]

    async def first() -> bool:
        return await groups() == [("max_deliveries", 3), ("declined", 1)]

    await wait_until(first, "both reasons are counted")
    await _give_up(client, 4, "declined")

    async def second() -> bool:
        return await groups() == [("declined", 5), ("max_deliveries", 3)]

    await wait_until(second, "new ones are counted")


async def test_a_job_is_explained(served: Served, client: Redis) -> None:
    [entry] = await enqueue(client, 1)
    [told] = (await served.get(f"/api/job?id={entry}")).data
    assert (told["group"], told["place"], told["entry_id"]) == (KEYS.pair, "ready", entry)
    assert (await served.get("/api/job?id=nobody")).data == []


@pytest.mark.parametrize("query", ["", "?id=", "?id=" + "x" * 301])
async def test_a_question_without_a_job_is_refused(served: Served, query: str) -> None:
    assert (await served.get(f"/api/job{query}")).code == 400


async def test_who_only_looks_changes_nothing(served: Served, client: Redis) -> None:
    await _give_up(client, 1, "declined")
    await wait_until(lambda: client.exists(KEYS.agreement), "a replica has taken the group")
    keys = {key async for key in client.scan_iter()}
    before = await client.xrange(KEYS.dead)
    for path in ("/", "/api/overview", "/api/job?id=x", "/status", "/readyz"):
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


# --- what it changes


async def test_without_a_token_file_nothing_can_be_changed(served: Served, client: Redis) -> None:
    for path in ("pause", "resume", "redrive", "drain", "undo-drain"):
        reply = await served.post(f"/api/{path}", PAIR)
        assert (reply.code, reply.data["error"]) == (403, "actions are off: set actions_token_file")
    assert await client.hget(KEYS.agreement, "paused") is None
    assert (await _overview(served))["actions"] is False


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Authorization": "Bearer wrong-wrong-wrong-wrong"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Content_Type": "text/plain"}, 415),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
async def test_whoever_is_not_entitled_changes_nothing(
    acting: Served, client: Redis, headers: dict[str, str], code: int
) -> None:
    assert (await acting.post("/api/pause", PAIR, **headers)).code == code
    assert await client.hget(KEYS.agreement, "paused") is None


@pytest.mark.parametrize("path", ["/api/pause", "/api/redrive", "/api/drain", "/api/undo-drain"])
async def test_a_link_changes_nothing(acting: Served, path: str) -> None:
    assert (await acting.get(path, Authorization=f"Bearer {TOKEN}")).code == 405


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '{"group": "other/group"}',
        '{"group": 7}',
        "{}",
        json.dumps({"group": KEYS.pair, "id": "x", "reason": "y"}),
    ],
)
async def test_what_makes_no_sense_is_refused(acting: Served, client: Redis, body: str) -> None:
    assert (await acting.post("/api/redrive", body)).code == 400
    assert await client.exists("other", "{other}:group:group") == 0


async def test_a_body_that_is_too_large_is_refused(acting: Served) -> None:
    assert (await acting.post("/api/pause", " " * (LARGEST_BODY + 1))).code == 400


async def test_with_the_token_a_group_is_paused_and_resumed(
    acting: Served, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "reaper.web"):
        paused = await acting.post("/api/pause", PAIR)
        assert (paused.code, paused.data) == (200, {"told": "orders/billing: recovery paused"})
        assert await client.hget(KEYS.agreement, "paused") == b"1"
        assert (await acting.post("/api/resume", PAIR)).code == 200
    assert await client.hget(KEYS.agreement, "paused") is None
    told = [record.getMessage() for record in caplog.records if record.name.startswith("reaper.web")]
    assert told == [
        f'action of the status page: result="orders/billing: recovery {done}"' for done in ("paused", "resumed")
    ]


async def test_one_dead_letter_or_those_of_a_reason_are_redriven(acting: Served, client: Redis) -> None:
    await _give_up(client, 2, "declined")
    await _give_up(client, 2, "other")
    rows: Any = await client.xrange(KEYS.dead)
    one = json.dumps({"group": KEYS.pair, "id": rows[3][0].decode()})
    assert (await acting.post("/api/redrive", one)).data == {"told": "orders/billing: 1 dead letter redriven"}
    some = json.dumps({"group": KEYS.pair, "reason": "declined"})
    assert (await acting.post("/api/redrive", some)).data == {"told": "orders/billing: 2 dead letters redriven"}
    assert (await client.xlen(KEYS.dead), await client.xlen(STREAM)) == (1, 3)


async def test_the_page_selects_by_the_rules_of_the_commands(acting: Served, client: Redis) -> None:
    await _give_up(client, 1, "timeout")
    for body in ({"id": "1-0", "reason": "timeout"}, {}, {"reason": 5}, {"id": "x"}):
        reply = await acting.post("/api/redrive", json.dumps({"group": KEYS.pair, **body}))
        assert reply.code == 400, body
    assert await client.xlen(KEYS.dead) == 1


async def test_single_dead_letters_are_told_with_what_they_hold(served: Served, client: Redis) -> None:
    await _give_up(client, 2, "timeout")
    payload = {"amount": "12.50", b"\xff\x00": b"\xad\xde", "bell": "\x07", "long": "é" * 3_000}
    await client.xadd(KEYS.dead, {**payload, "reaper.job": "order-17", "reaper.dead.reason": "boom"})  # type: ignore[dict-item]
    where = f"/api/dead-letters?group={quote(KEYS.pair)}"
    assert [one["job"] for one in (await served.get(f"{where}&reason=timeout")).data] == ["timeout-1", "timeout-0"]
    (one,) = (await served.get(f"{where}&reason=boom")).data
    assert "fields" not in one
    (letter,) = (await served.get(f"{where}&id={one['id']}")).data
    amount, binary, bell, long = letter["fields"]
    assert (amount["name"]["text"], amount["value"]) == ("amount", {"text": "12.50", "bytes": 5, "cut": False})
    assert (binary["name"]["hex"], binary["value"]["hex"]) == ("ff 00", "ad de")
    assert bell["value"]["hex"] == "07", "nothing that cannot be seen passes for text"
    assert (long["value"]["bytes"], long["value"]["cut"]) == (6_000, True)
    assert len(long["value"]["text"]) == LONGEST_VALUE // 2


@pytest.mark.parametrize(
    ("query", "code"),
    [("group=no/such&reason=x", 400), (f"group={KEYS.pair}&id=x", 400), (f"group={KEYS.pair}&id=1-0", 404), ("", 400)],
)
async def test_a_dead_letter_that_is_not_there_is_a_sentence(served: Served, query: str, code: int) -> None:
    reply = await served.get(f"/api/dead-letters?{query}")
    assert (reply.code, bool(reply.data["error"])) == (code, True)


async def test_what_the_server_can_is_told(served: Served, client: Redis) -> None:
    told = await _overview(served)
    assert told["can"] == in_words(await capabilities_quietly(client))
    assert told["capabilities"]


def _named(replica: Reaper) -> str:
    return json.dumps({"replica": replica.replica_id})


async def test_a_replica_is_drained_until_that_is_undone(acting: Served, client: Redis) -> None:
    async with Reaper(acting.reaper.settings.model_copy(update={"name": "bob"})) as bob:

        async def both_are_seen() -> bool:
            return len((await _overview(acting))["replicas"]) == 2

        await wait_until(both_are_seen, "both replicas have registered")
        await wait_until(lambda: acting.reaper.held + bob.held == 1, "one of them holds the group")
        drained, other = (bob, acting.reaper) if bob.held else (acting.reaper, bob)
        reply = await acting.post("/api/drain", _named(drained))
        assert reply.data == {"told": f"{drained.replica_id} hands its groups over, and takes none for 5 minutes"}
        await holds(other)
        assert not drained.held
        assert await client.zscore(NAMESPACE.drained, drained.replica_id)
        reply = await acting.post("/api/undo-drain", _named(drained))
        assert reply.data == {"told": f"{drained.replica_id} may take groups again"}
        assert await client.exists(NAMESPACE.drained) == 0


async def test_a_replica_without_an_heir_is_not_drained(acting: Served, client: Redis) -> None:

    async def refusal() -> Any:
        reply = await acting.post("/api/drain", _named(acting.reaper))
        return reply.code == 400 and "no other live replica with the same settings" in reply.data["error"]

    await wait_until(refusal, "it has registered, and is refused")
    nameless = await acting.post("/api/drain", "{}")
    assert (nameless.code, nameless.data["error"]) == (400, "invalid request: replica must be text.")
    assert await client.exists(NAMESPACE.drained) == 0
    assert acting.reaper.held


# --- the token


def test_a_token_is_read_without_the_end_of_its_line_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xef\xbb\xbf0123456789abcdef\r\n")
    assert read_token(str(file)) == b"0123456789abcdef"
    assert read_token("") is None


@pytest.mark.parametrize(("content", "sentence"), [("short", "5 characters. Use 16"), (None, "cannot read actions")])
async def test_a_token_that_cannot_work_ends_the_start(tmp_path: Path, content: str | None, sentence: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    replica = Reaper(reaper_settings("redis://127.0.0.1:1/0", health_port=0, actions_token_file=str(file)))
    with pytest.raises(ConfigurationError, match=sentence):
        async with serving_health(replica):
            pass


@pytest.mark.parametrize(
    ("header", "right"),
    [
        ("Bearer abc", True),
        ("bearer abc", True),
        ("Bearer  abc ", True),
        ("abc", False),
        ("", False),
        ("Bearer ä", False),
    ],
)
def test_only_a_bearer_of_the_token_is_let_in(header: str, right: bool) -> None:
    assert is_token(b"abc", header) == right
