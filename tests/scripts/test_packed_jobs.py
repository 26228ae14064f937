"""Members of a schedule are written by anybody: whatever is in one stops no script, and no job behind it."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.scripts.scene import FENCE, SUSPECT_SCORE
from tests.support.servers import RedisServer
from workers.protocol.keys import group_keys
from workers.protocol.scripts import load_script

KEYS = group_keys("orders", "billing")
GOOD: dict[str, Any] = {
    "v": 1, "job_id": "good", "deliveries": 2, "generation": "0", "first_ms": "1700000000000", "consumers": "w1",
    "copies": 1, "waits": 0, "user": ["n", "1"], "entry_id": "1700000000000-1", "suspect": 0,
}  # fmt: skip
KINDS = ("suspect", "retry", "enqueue")
NAMES = [*GOOD, "kind", "previous"]
MISSING = "(missing)"

odd: st.SearchStrategy[Any] = (
    st.sampled_from(
        [MISSING, None, True, -1, 1.5, 1e300, 2**53, "", "x", "\"", "\x00", "9" * 30, [], {}, [1], ["n"], [["n"]]]
    )
    | st.integers(-(2**40), 2**60)
    | st.text(max_size=5)
)  # fmt: skip
changes = st.dictionaries(st.sampled_from(NAMES), odd, min_size=1, max_size=4)

PACK = "return cmsgpack.pack(cjson.decode(ARGV[1]))"


def _packed(client: redis.Redis, kind: str, changed: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    job = {**GOOD, "kind": kind, **changed}
    wanted = {name: value for name, value in job.items() if value != MISSING}
    packed: Any = client.eval(PACK, 0, json.dumps(wanted))
    return bytes(packed)


def _run(client: redis.Redis, package: str, name: str, keys: list[str], words: list[Any]) -> Any:
    return client.eval(load_script(package, name).source, len(keys), *keys, *words)


def _release(client: redis.Redis) -> Any:
    places = [KEYS.stream, KEYS.retry, KEYS.schedule, KEYS.suspects, KEYS.fence, KEYS.agreement, KEYS.journal]
    return _run(client, "workers.protocol", "release_suspects", places, [FENCE, KEYS.group, "stream", 1, 1_000, 7])


def _move(client: redis.Redis) -> Any:
    places = [
        KEYS.stream, KEYS.retry, KEYS.schedule, KEYS.stream_schedule, KEYS.fence, KEYS.agreement, KEYS.journal,
    ]  # fmt: skip
    words = [FENCE, KEYS.group, "stream", 1, 1_000, 7, 100, 10**9, 20_000]
    return _run(client, "workers.protocol", "move_due", places, words)


def _search(client: redis.Redis) -> None:
    _run(client, "reaper", "find_scheduled", [KEYS.schedule], ["good", 0, 1_000])


def _forget(client: redis.Redis) -> Any:
    places = [
        KEYS.stream, KEYS.retry, KEYS.schedule, KEYS.suspects, KEYS.dead, KEYS.fence, KEYS.agreement, KEYS.journal,
        KEYS.notes,
    ]  # fmt: skip
    return _run(client, "reaper", "forget_group", places, [KEYS.group, FENCE, 0, 10**9, "stream", 1, 1_000])


def _prepare(client: redis.Redis) -> None:
    client.flushall()
    client.xgroup_create(KEYS.stream, KEYS.group, "0", mkstream=True)
    client.set(KEYS.fence, FENCE)


def _jobs(client: redis.Redis) -> list[bytes]:
    entries: Any = client.xrange(KEYS.stream)
    return [fields[b"reaper.job"] for _, fields in entries]


@given(kind=st.sampled_from(KINDS), changed=changes, raw=st.none() | st.binary(max_size=30))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(kind="suspect", changed={"deliveries": MISSING}, raw=None)
@example(kind="suspect", changed={"entry_id": MISSING, "generation": MISSING, "first_ms": MISSING}, raw=None)
@example(kind="suspect", changed={"user": [["n"], "1"]}, raw=None)
@example(kind="suspect", changed={"copies": "x", "waits": "x", "suspect": "x"}, raw=None)
@example(kind="suspect", changed={"entry_id": '1-1","forged":"'}, raw=None)
def test_a_bad_member_stops_neither_script_nor_the_job_behind_it(
    server: RedisServer, kind: str, changed: dict[str, Any], raw: bytes | None
) -> None:
    with redis.Redis(port=server.port, protocol=2) as client:
        _prepare(client)
        bad = raw if raw is not None else _packed(client, kind, {"job_id": "bad"} | changed)
        client.zadd(KEYS.schedule, {bad: SUSPECT_SCORE, _packed(client, "suspect"): SUSPECT_SCORE + 1})
        for _ in range(2):  # one that is a job after all goes first, and alone
            released = _release(client)
            assert released[0] == b"ok"
            for entry in client.hkeys(KEYS.suspects):
                client.xreadgroup(KEYS.group, "w1", {KEYS.stream: ">"})
                client.xack(KEYS.stream, KEYS.group, entry)
        assert b"good" in _jobs(client)

        _prepare(client)
        good, waiting = _packed(client, "retry", {"suspect": MISSING}), {bad: 1}
        client.zadd(KEYS.schedule, {**waiting, good: 2})
        client.zadd(KEYS.stream_schedule, waiting)
        assert _move(client)[0] == b"ok"
        assert b"good" in _jobs(client)

        client.zadd(KEYS.schedule, {**waiting, good: SUSPECT_SCORE})
        _search(client)
        assert _forget(client)[0] in {b"done", b"held", b"more"}


def test_a_flood_of_members_that_are_no_jobs_keeps_nobody_waiting_for_good(server: RedisServer) -> None:
    with redis.Redis(port=server.port, protocol=2) as client:
        _prepare(client)
        client.zadd(KEYS.schedule, {b"junk %d" % number: SUSPECT_SCORE for number in range(250)})
        client.zadd(KEYS.schedule, {_packed(client, "suspect"): SUSPECT_SCORE + 1})
        for _ in range(3):
            assert _release(client)[0] == b"ok"
        assert _jobs(client) == [b"good"]
