"""Dead letters that died of the same thing lie together, and the command that is printed gives them back."""

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest
from pyspark.sql import SparkSession
from redis.asyncio import Redis

from reaper.operations.dead_letters import read_dead_letter
from reaper.pipeline.analysis.answers import Rows
from reaper.pipeline.report.next_steps import redrive_command
from tests.pipeline.questions import ask
from tests.pipeline.stories import EPOCH, event
from tests.support.processes import ROOT
from tests.support.servers import RedisServer
from workers.protocol.messages import pair_up, text

TRACE = """Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/workers/execution.py", line 107, in call
    await handler(job)
  File "/srv/app/{release}/mail.py", line {line}, in send
    raise ConnectionError(f"...")
ConnectionError: refused
"""

# ---- clusters

Letter = dict[str, Any]


def letter(at: int, *, error: str, reason: str = "max_deliveries", group: str = "billing", **more: Any) -> Letter:
    """One dead letter of the lake; columns that are not given are null."""
    instant = EPOCH + timedelta(milliseconds=at)
    facts = {"id": f"{at}-0", "stream": "{orders}:dead:billing", "at": instant, "seq": 0, "date": instant.date()}
    common = {"group": group, "source_stream": "orders", "reason": reason, "error": error, "job": f"{at - 100}-0"}
    return {**facts, **common, **more}


def clusters(spark: SparkSession, dead: Sequence[Letter], *events: Letter) -> Rows:
    asked = ask(spark, ("dead_letter_clusters",), dead_letters=dead, events=events)
    return asked.answers["dead_letter_clusters"]


PATTERNS = {
    "ConnectionError: 10.0.17.3:5432 after 2.5 s": "ConnectionError: <n> after <n> s",
    "ValueError: invoice 'INV-17' of 3 lines is empty": "ValueError: invoice <text> of <n> lines is empty",
    'no "field" here': "no <text> here",
    "it can't and doesn't": "it can't and doesn't",
    "[Errno 2] No such file: /srv/data/2026/7.json, sorry": "[Errno <n>] No such file: <path>, sorry",
    "open C:\\data\\x.txt": "open <path>",
    "GET https://shop.example/orders/17?x=1 failed": "GET <path> failed",
    "request 3f2504e0-4f89-41d3-9a0c-0305e82c3301 died": "request <n> died",
    "<Job object at 0x7f3b2c>": "<Job object at <n>>",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8, line 3: no": "commit <n>, line <n>: no",
    "worker7 lost  \n shard_12": "<n> lost <n>",
    "": "",
    "x" * 500: "x" * 400,
}
FRAMES = {
    TRACE.format(release="v1", line=17): "mail.py:send",
    '  File "C:\\app\\mail.py", line 3, in <lambda>\n': "mail.py:<lambda>",
    '  File "mail.py", line 3, in send': "mail.py:send",
    "killed": "",
    "": "",
}


def test_only_what_stays_the_same_is_kept(spark: SparkSession) -> None:
    dead = [letter(n, error=error, group=f"g{n}") for n, error in enumerate(PATTERNS, 1_000)]
    assert {row["error"]: row["pattern"] for row in clusters(spark, dead)} == PATTERNS


def test_an_error_is_known_by_where_it_was_raised(spark: SparkSession) -> None:
    dead = [letter(n, error="", traceback=trace, group=f"g{n}") for n, trace in enumerate(FRAMES, 1_000)]
    assert {row["traceback"]: row["frame"] for row in clusters(spark, dead)} == FRAMES


def test_letters_that_died_of_the_same_thing_are_one_cluster_with_the_newest_as_sample(spark: SparkSession) -> None:
    refused = "ConnectionError: 10.0.0.{} refused"
    trace = TRACE.format(release="v1", line=17)
    dead = [
        letter(1_000, error=refused.format(1), traceback=trace, deliveries=3),
        letter(3_000, error=refused.format(2), traceback=trace, deliveries=2, consumers="w1,w2"),
        letter(2_000, error=refused.format(3), traceback=TRACE.format(release="v2", line=9)),
        letter(2_500, error=refused.format(3)),  # raised elsewhere, as far as is known
        letter(2_600, error=refused.format(4), reason="rejected", traceback=trace),
        letter(2_700, error=refused.format(5), traceback=trace, group="audit"),
    ]
    redriven = event("redriven", 4_000, entry="2000-0", new_entry="4000-0")
    found = clusters(spark, dead, redriven)
    shown = {(row["group"], row["reason"], row["frame"]): row for row in found}
    assert {key: (row["n"], row["redriven"], row["id"]) for key, row in shown.items()} == {
        ("billing", "max_deliveries", "mail.py:send"): (3, 1, "3000-0"),
        ("billing", "max_deliveries", ""): (1, 0, "2500-0"),
        ("billing", "rejected", "mail.py:send"): (1, 0, "2600-0"),
        ("audit", "max_deliveries", "mail.py:send"): (1, 0, "2700-0"),
    }
    biggest = shown["billing", "max_deliveries", "mail.py:send"]
    assert biggest == {
        "source_stream": "orders",
        "group": "billing",
        "reason": "max_deliveries",
        "pattern": "ConnectionError: <n> refused",
        "frame": "mail.py:send",
        "n": 3,
        "redriven": 1,
        "first_ms": 1_000,
        "last_ms": 3_000,
        "id": "3000-0",
        "job": "2900-0",
        "error": refused.format(2),
        "traceback": trace,
        "consumers": "w1,w2",
        "deliveries": 2,
    }
    assert redrive_command(shown["billing", "max_deliveries", "mail.py:send"]) == (
        "reaper dead-letters redrive orders/billing --reason max_deliveries"
    )


def test_names_from_outside_are_quoted_for_the_shell() -> None:
    words = shlex.split(redrive_command({"source_stream": "a b;rm", "group": "$x", "reason": "a'b"}))
    assert words[3:] == ["a b;rm/$x", "--reason", "a'b"]


# ---- the command


@pytest.mark.anyio
async def test_the_printed_command_redrives_what_has_the_reason_and_nothing_else(
    spark: SparkSession, server: RedisServer, client: Redis
) -> None:
    await client.xgroup_create("orders", "billing", "0", mkstream=True)
    trace = TRACE.format(release="v1", line=17)
    refused = "ConnectionError: 10.0.0.1 refused"
    for n, (error, reason) in enumerate([(refused, "failed"), (refused, "failed"), ("KeyError: 'a'", "rejected")]):
        await client.execute_command(
            "XADD", "{orders}:dead:billing", "*", "n", n, "reaper.job", f"job-{n}", "reaper.deliveries", 3,
            "reaper.dead.stream", "orders", "reaper.dead.group", "billing", "reaper.dead.reason", reason,
            "reaper.dead.error", error, "reaper.dead.traceback", trace,
        )  # fmt: skip
    (biggest, *_) = await ingested(spark, client)
    program, *words = shlex.split(redrive_command(biggest))
    environment = {**os.environ, "REAPER_REDIS_URL": server.url}
    answer = await anyio.run_process([sys.executable, "-m", program, *words], cwd=ROOT, env=environment)
    assert answer.stdout == b"orders/billing: 2 dead letters redriven\n"
    ready: Any = await client.xrange("orders")
    left: Any = await client.xrange("{orders}:dead:billing")
    assert ([flat[1] for _, flat in ready], [flat[1] for _, flat in left]) == ([b"0", b"1"], [b"2"])


async def ingested(spark: SparkSession, client: Redis) -> Rows:
    """Return the clusters of the dead letters in Redis, as ingestion copies them into the lake."""
    rows: Any = await client.xrange("{orders}:dead:billing")
    dead = []
    for number, (entry_id, flat) in enumerate(rows):
        one, traceback = read_dead_letter(entry_id, flat), text(dict(pair_up(flat)).get(b"reaper.dead.traceback", b""))
        dead.append(letter(one.at_ms, error=one.error, reason=one.reason, traceback=traceback, id=one.id, seq=number))
    return clusters(spark, dead)
