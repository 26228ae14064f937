"""``reaper dead-letters``: the input of operators, and the output."""

import base64
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.cli.ready_again import redrive
from reaper.operations.dead_letters import read_dead_letter
from tests.operator.conftest import Command
from tests.operator.dead import PAIR, give_up, give_up_many, ids_of, redriven_often, reject
from tests.scripts.scene import Scene, entry_id
from tests.support.servers import RedisServer
from workers.protocol.connection import reader_client
from workers.protocol.keys import group_keys
from workers.protocol.messages import pair_up, parse_read_reply, text
from workers.runtime.printing import LONGEST_TEXT

pytestmark = pytest.mark.anyio


async def test_list_shows_every_fact_of_a_dead_letter(scene: Scene, reaper: Command) -> None:
    dead = await give_up(scene)
    (letter,) = (await reaper("dead-letters", "list", *PAIR, "-o", "json")).data
    assert letter.pop("at_ms") >= letter.pop("last_ms") > letter["first_ms"]
    assert letter == {
        "id": dead,
        "job": entry_id(1),
        "group": "orders/billing",
        "entry": entry_id(1),
        "reason": "max_deliveries",
        "error": "not settled within the visibility timeout",
        "deliveries": 3,
        "generation": 0,
        "consumers": ["w1"],
        "first_ms": int(entry_id(1).split("-")[0]),
        "fields": [
            ["b", {"base64": base64.b64encode(b"\xff\x00\r\n\xc3(").decode()}],
            ["a", "1"],
            ["b", "again"],
            ["traceparent", "00-11-22-01"],
        ],
    }


async def test_list_is_one_line_a_letter_for_people(scene: Scene, reaper: Command) -> None:
    dead = await give_up(scene)
    answer = await reaper("dead-letters", "list", *PAIR)
    (line,) = answer.out.splitlines()
    assert line.startswith(f"{dead}  orders/billing  job {entry_id(1)}  ")
    assert line.endswith("deliveries 3  generation 0  max_deliveries: not settled within the visibility timeout")


async def test_list_stops_at_the_limit_and_says_so(scene: Scene, reaper: Command) -> None:
    letters = await give_up_many(scene, 3)
    answer = await reaper("dead-letters", "list", *PAIR, "--limit", "2")
    assert [line.split()[0] for line in answer.out.splitlines()] == letters[:2]
    assert answer.err == "only the first 2 are listed: raise --limit\n"


async def test_list_finds_a_reason_among_many(scene: Scene, reaper: Command) -> None:
    await give_up_many(scene, 120)
    rejected = await reject(scene, "invalid")
    answer = await reaper("dead-letters", "list", *PAIR, "--reason", "invalid", "-o", "json")
    assert [letter["id"] for letter in answer.data] == [rejected]


async def test_show_prints_the_payload_with_duplicates_in_order(scene: Scene, reaper: Command) -> None:
    dead = await give_up(scene, "b", "1", "a", "é", "b", "2")
    answer = await reaper("dead-letters", "show", *PAIR, dead)
    assert answer.out.splitlines()[-4:] == ["fields", '  "b" = "1"', '  "a" = "é"', '  "b" = "2"']
    assert f"job          {entry_id(1)}" in answer.out.splitlines()


async def test_show_cuts_long_lines_and_says_so(client: Redis, reaper: Command) -> None:
    key = group_keys("orders", "billing").dead
    fields: dict[Any, Any] = {b"bin": bytes(range(256)) * 4_000, "reaper.dead.error": "E" * 100_000}
    dead = text(await client.xadd(key, fields))

    answer = await reaper("dead-letters", "show", *PAIR, dead)
    assert max(map(len, answer.out.splitlines())) < LONGEST_TEXT + 100
    assert "E … (95" in answer.out

    whole = (await reaper("dead-letters", "show", *PAIR, dead, "-o", "json")).data
    assert base64.b64decode(whole["fields"][0][1]["base64"]) == fields[b"bin"]


@pytest.mark.usefixtures("scene")
async def test_show_of_a_letter_that_is_not_there_says_why_that_may_be(reaper: Command) -> None:
    answer = await reaper("dead-letters", "show", *PAIR, "1-1")
    assert answer.code == 1
    assert answer.err == (
        "error: dead letter 1-1 of orders/billing does not exist: it was redriven or deleted. "
        "`reaper dead-letters list orders/billing` lists all.\n"
    )


@pytest.mark.usefixtures("scene")
async def test_an_id_that_is_none_is_rejected_with_an_example(reaper: Command) -> None:
    answer = await reaper("dead-letters", "show", *PAIR, "first")
    assert answer.code == 2
    assert "'first' is not an entry ID" in answer.err


@pytest.mark.usefixtures("scene")
async def test_an_id_that_redis_does_not_take_is_impossible_and_not_unreachable(reaper: Command) -> None:
    for words in (("show",), ("delete", "--yes"), ("redrive",)):
        answer = await reaper("dead-letters", *words, *PAIR, "18446744073709551616-0", "-o", "json")
        assert (answer.code, answer.data["status"]) == (2, "invalid")
    assert (await reaper("explain", "18446744073709551616-0", "--group", *PAIR)).code == 1


async def test_an_ordinary_consumer_group_reads_dead_letters(scene: Scene, server: RedisServer) -> None:
    dead = await give_up(scene)
    keys, reader = scene.keys, reader_client(server.url)
    await scene.client.xgroup_create(keys.dead, "morgue", "0")
    reply = await reader.execute_command("XREADGROUP", "GROUP", "morgue", "clerk", "STREAMS", keys.dead, ">")
    ((_, entry, flat, *_),) = parse_read_reply(reply)
    await reader.aclose()
    assert flat is not None
    fields = pair_up(flat)
    assert fields[:4] == [
        (b"b", b"\xff\x00\r\n\xc3("),
        (b"a", b"1"),
        (b"b", b"again"),
        (b"traceparent", b"00-11-22-01"),
    ]
    assert [name.decode() for name, _ in fields[4:]] == [
        *("reaper.job", "reaper.deliveries", "reaper.generation", "reaper.first_ms", "reaper.consumers"),
        *("reaper.dead.stream", "reaper.dead.group", "reaper.dead.entry", "reaper.dead.reason", "reaper.dead.error"),
        *("reaper.dead.last_ms", "reaper.dead.at_ms"),
    ]
    assert read_dead_letter(entry, flat).id == dead


async def test_redrive_by_id_tells_what_became_of_each(scene: Scene, reaper: Command) -> None:
    dead = await give_up(scene)
    answer = await reaper("dead-letters", "redrive", *PAIR, dead, "1-1")
    new = (await ids_of(scene, "orders"))[-1]
    assert answer.out.splitlines() == [
        f"{dead}  job {entry_id(1)}  redriven as {new}",
        "1-1  skipped: it does not exist",
        "orders/billing: 1 dead letter redriven, 1 missing",
    ]
    assert answer.code == 1


async def test_redrive_by_reason_leaves_the_others(scene: Scene, reaper: Command) -> None:
    dead, rejected = await give_up(scene), await reject(scene, "invalid")
    answer = await reaper("dead-letters", "redrive", *PAIR, "--reason", "max_deliveries", "-o", "json")
    assert dead not in await ids_of(scene, scene.keys.dead)
    assert await ids_of(scene, scene.keys.dead) == [rejected]
    assert (answer.code, answer.data["done"]) == (0, 1)


async def test_redrive_all_redrives_every_letter_once(scene: Scene, reaper: Command) -> None:
    letters = await give_up_many(scene, 250)
    answer = await reaper("dead-letters", "redrive", *PAIR, "--all")
    assert answer.out == "orders/billing: 250 dead letters redriven\n"
    assert await ids_of(scene, scene.keys.dead) == []
    assert len(await ids_of(scene, "orders")) == len(letters)


async def test_a_dry_run_of_redrive_writes_nothing(scene: Scene, reaper: Command) -> None:
    dead = await give_up(scene)
    before = await scene.state()
    answer = await reaper("dead-letters", "redrive", *PAIR, "--all", "--dry-run")
    assert answer.out.splitlines() == [
        f"{dead}  job {entry_id(1)}  would be redriven",
        "orders/billing: 1 dead letter would be redriven",
    ]
    assert await scene.state() == before


async def test_the_loop_guard_holds_until_it_is_forced(scene: Scene, reaper: Command) -> None:
    looper = await redriven_often(scene, 5)
    guarded = await reaper("dead-letters", "redrive", *PAIR, "--all")
    assert guarded.code == 1
    assert "skipped: it was redriven 5 times already (--force redrives it)" in guarded.out
    assert await ids_of(scene, scene.keys.dead) == [looper]
    forced = await reaper("dead-letters", "redrive", *PAIR, "--all", "--force")
    assert (forced.code, await ids_of(scene, scene.keys.dead)) == (0, [])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "no dead letter is selected. Give IDs, or a filter such as --reason max_deliveries, or --all."),
        (("--all", "1-1"), "IDs, filters and --all exclude each other"),
        (("--all", "--reason", "x"), "IDs, filters and --all exclude each other"),
    ],
)
async def test_a_selection_that_is_not_clear_is_rejected(
    words: tuple[str, ...], sentence: str, scene: Scene, reaper: Command
) -> None:
    await give_up(scene)
    before = await scene.state()
    for verb in ("redrive", "delete"):
        answer = await reaper("dead-letters", verb, *PAIR, *words)
        assert answer.code == 2
        assert sentence in answer.err
    assert await scene.state() == before


async def test_delete_deletes_what_was_named_and_confirmed(scene: Scene, reaper: Command) -> None:
    letters = await give_up_many(scene, 3)
    answer = await reaper("dead-letters", "delete", *PAIR, *letters[:2], typed="y\n")
    assert answer.out == "orders/billing: 2 dead letters deleted\n"
    assert "Delete 2 dead letters of orders/billing for good?" in answer.err
    assert await ids_of(scene, scene.keys.dead) == letters[2:]


@pytest.mark.parametrize("typed", ["", "\n", "no\n", "n\n", "orders\n"])
async def test_delete_deletes_nothing_unless_it_is_confirmed(typed: str, scene: Scene, reaper: Command) -> None:
    letters = await give_up_many(scene, 2)
    answer = await reaper("dead-letters", "delete", *PAIR, "--all", typed=typed)
    assert answer.code == 1
    assert await ids_of(scene, scene.keys.dead) == letters


async def test_delete_by_age_and_reason_leaves_what_is_young_or_different(scene: Scene, reaper: Command) -> None:
    young = await reject(scene, "invalid")
    for reason in ("invalid", "other"):
        await scene.client.execute_command(
            "XADD", scene.keys.dead, "*", "n", 1, "reaper.dead.reason", reason, "reaper.dead.at_ms", 1_700_000_000_000
        )
    answer = await reaper(
        "dead-letters", "delete", *PAIR, "--older-than", "30d", "--reason", "invalid", "--yes", "-o", "json"
    )
    left = (await reaper("dead-letters", "list", *PAIR, "-o", "json")).data
    assert answer.data == {"deleted": 1, "missing": []}
    assert [(letter["id"] == young, letter["reason"]) for letter in left] == [(True, "invalid"), (False, "other")]


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("rate", ["fast", "0", "-1", "5/x", "50m", "1e999"])
async def test_a_rate_is_a_number_above_0_per_unit_of_time(rate: str, reaper: Command) -> None:
    answer = await reaper("dead-letters", "redrive", *PAIR, "--all", "--rate", rate)
    assert answer.code == 2
    assert "error: invalid value for '--rate'" in answer.err
    assert "is not a rate, such as 50, 50/s or 1000/h." in answer.err


@pytest.mark.parametrize(("rate", "per_second"), [("50", 50), ("50/s", 50), ("90/m", 1.5), ("1800/h", 0.5)])
def test_a_rate_has_a_unit(rate: str, per_second: float) -> None:
    with redrive.make_context("redrive", [*PAIR, "--all", "--rate", rate]) as context:
        assert context.params["rate"] == per_second


def test_garbage_in_reserved_fields_reads_as_empty() -> None:
    flat = [b"reaper.deliveries", b"many", b"reaper.dead.at_ms", b"\xff", b"reaper.job", b"", b"x", b"y"]
    letter = read_dead_letter(b"5-0", flat)
    assert (letter.job, letter.deliveries, letter.at_ms, letter.fields) == ("5-0", 0, 5, [(b"x", b"y")])
