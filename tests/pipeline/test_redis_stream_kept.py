"""Pages that the planner of a limited batch has read go to its tasks; what they cannot have, they read from Redis."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reaper.pipeline.redis_stream import DataLossError, kept
from reaper.pipeline.redis_stream.kept import Keeper, KeptPages
from tests.pipeline.streams import JOURNAL, Query, add, connected, counts, delete, query, rows, trim
from tests.support.servers import RedisServer

pytestmark = pytest.mark.contract

LIMITED: dict[str, Any] = {"maxEntriesPerTrigger": 60, "pageSize": 10}


def pages_asked(server: RedisServer) -> int:
    """How often XRANGE has run on this server."""
    with connected(server) as client:
        return int(client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])


def numbers(running: Query) -> list[int]:
    return [int(row["n"]) for row in running.read()]


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_a_limited_batch_holds_crosses_once(server: RedisServer, partitions: int) -> None:
    add(server, *range(1, 101))
    with query(server, **LIMITED, partitions=partitions) as running:
        running.plan()
        asked = pages_asked(server)
        assert sorted(numbers(running)) == list(range(1, 61))
        assert len(running.planned) == partitions
        assert pages_asked(server) == asked


def test_streams_share_what_is_kept_of_a_batch(server: RedisServer) -> None:
    add(server, *range(1, 41), stream="a")
    add(server, *range(101, 141), stream="b")
    with query(server, **LIMITED, stream="a,b") as running:
        running.plan()
        asked = pages_asked(server)
        assert numbers(running) == [*range(1, 31), *range(101, 131)]
        assert pages_asked(server) == asked


def test_pages_may_hold_any_bytes(server: RedisServer) -> None:
    value = bytes(range(256)) * 1_000
    with connected(server) as client:
        for number in range(1, 6):
            client.xadd(JOURNAL, {"n": number, b"\xff\x00": value, b"": b""}, id=f"{number}-0")
    with query(server, maxEntriesPerTrigger=4) as running:
        assert running.batch() == [1, 2, 3, 4]
        assert running.batch() == [5]


@pytest.mark.parametrize("most", [0, 300, 800])
@pytest.mark.parametrize("partitions", [1, 3])
def test_beyond_the_bound_tasks_read_from_redis(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, most: int, partitions: int
) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES", most)
    add(server, *range(1, 101))
    with query(server, **LIMITED, partitions=partitions) as running:
        running.plan()
        asked = pages_asked(server)
        assert sorted(numbers(running)) == list(range(1, 61))
        assert pages_asked(server) > asked


def test_a_batch_that_is_planned_again_has_the_same_rows(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with query(server, **LIMITED) as running:
        begun = running.reader.initialOffset()
        end = running.plan()
        first = running.read()
    with query(server, **LIMITED) as resumed:
        planned = resumed.reader.partitions(begun, end)
        assert [part.kept for part in planned] == [None]  # type: ignore[attr-defined]
        assert rows(resumed.reader, planned) == first


def test_a_task_that_begins_after_the_planner_has_ended_reads_from_redis(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with query(server, **LIMITED) as running:
        running.plan()
        running.close()
        asked = pages_asked(server)
        assert numbers(running) == list(range(1, 61))
        assert pages_asked(server) > asked


PLANNER = """
import pickle, sys
from reaper.pipeline.redis_stream.source import RedisStreamSource, StreamReader
from tests.pipeline.streams import ROW
reader = StreamReader(RedisStreamSource(eval(sys.argv[1])).parsed, ROW)
begun = reader.initialOffset()
planned = reader.partitions(begun, reader.latestOffset(begun, reader.getDefaultReadLimit()))
print(pickle.dumps(planned).hex(), flush=True)
sys.stdin.read()
"""


def test_a_task_has_the_pages_of_another_process_until_that_is_killed(server: RedisServer) -> None:
    add(server, *range(1, 101))
    options = {"url": server.url, "stream": JOURNAL, "maxEntriesPerTrigger": "60"}
    words = [sys.executable, "-c", PLANNER, repr(options)]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as planner,
        query(server) as task,
    ):
        assert planner.stdout
        planned = pickle.loads(bytes.fromhex(planner.stdout.readline()))  # noqa: S301
        asked = pages_asked(server)
        first = rows(task.reader, planned)
        without = pages_asked(server) == asked
        planner.kill()
        planner.wait()
        again = rows(task.reader, planned)
    assert without
    assert pages_asked(server) > asked
    assert [int(row["n"]) for row in first] == list(range(1, 61))
    assert again == first


def test_what_is_trimmed_or_deleted_after_it_was_kept_is_read(server: RedisServer) -> None:
    """A batch is what was there when it was read; planned again, it is what is there then."""
    add(server, *range(1, 101))
    with query(server, **LIMITED) as running:
        running.plan()
        delete(server, 7)
        trim(server, 50)
        assert numbers(running) == list(range(1, 61))


def test_what_is_trimmed_before_a_task_reads_what_was_not_kept_is_loss(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES", 500)
    add(server, *range(1, 101))
    with query(server, **LIMITED) as running:
        running.plan()
        trim(server, 50)
        with pytest.raises(DataLossError, match=r"were trimmed before|may have been trimmed"):
            running.read()


def while_walking(monkeypatch: pytest.MonkeyPatch, page: int, then: Any) -> None:
    """Do something when the planner has read its ``page``-th page."""
    keep, seen = Keeper.keep, []

    def kept_and(self: Keeper, entries: list[Any]) -> bool:
        seen.append(len(entries))
        if len(seen) == page:
            then()
        return keep(self, entries)

    monkeypatch.setattr(Keeper, "keep", kept_and)


@pytest.mark.parametrize("page", [1, 2, 4])
def test_what_is_trimmed_while_the_planner_walks_is_loss(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    add(server, 1)
    with query(server, **LIMITED) as running:
        running.batch()
        add(server, *range(2, 102))
        while_walking(monkeypatch, page, lambda: trim(server, 20))
        running.plan()
        with pytest.raises(DataLossError, match=r"were trimmed before|may have been trimmed"):
            running.read()


def test_what_is_trimmed_behind_the_planner_is_no_loss(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add(server, *range(1, 51))
    with query(server, **LIMITED) as running:
        running.batch()
        add(server, *range(51, 152))
        while_walking(monkeypatch, 2, lambda: trim(server, 101))
        running.plan()
        asked = pages_asked(server)
        if counts(server):
            assert numbers(running) == list(range(51, 111))
            assert pages_asked(server) == asked
        else:  # 50-0 is gone, and only IDs can be compared
            with pytest.raises(DataLossError, match="may have been trimmed"):
                running.read()


def test_what_is_deleted_while_the_planner_walks_is_in_the_batch_if_it_was_read(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server, 1)
    with query(server, **LIMITED) as running:
        running.batch()
        add(server, *range(2, 102))
        while_walking(monkeypatch, 2, lambda: delete(server, 2, 50))
        assert running.batch() == [number for number in range(2, 63) if number != 50]
        assert running.batch() == list(range(63, 102))


def test_the_memory_of_a_batch_is_gone_with_the_next_one(server: RedisServer) -> None:
    add(server, *range(1, 301))
    with query(server, **LIMITED) as running:
        opened = []
        for _ in range(4):
            running.batch()
            opened.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    assert len(set(opened)) == 1


# ---- what a path may lead to


def test_nothing_else_is_taken_for_kept_pages(tmp_path: Path) -> None:
    keeper, other = Keeper(), Keeper()
    keeper.keep([[b"1-0", [b"n", b"1"]]])
    other.keep([[b"2-0", [b"n", b"2"]]])
    pages, others = keeper.pages(16, keeper.end), other.pages(16, other.end)
    assert pages
    assert others
    assert list(pages.read()) == [[[b"1-0", [b"n", b"1"]]]]
    file = tmp_path / "memfd:redis-stream "
    file.write_bytes(pages.secret)
    os.mkfifo(tmp_path / "pipe")
    for path in (others.path, str(file), str(tmp_path / "pipe"), str(tmp_path / "nothing"), "/proc/self/fd/0", ""):
        assert list(KeptPages(path, pages.secret, pages.start, pages.end).read()) == []
    keeper.close()
    other.close()
    assert list(pages.read()) == []


@pytest.mark.parametrize("lacks", ["memfd_create", "memory"])
def test_where_no_memory_can_be_had_tasks_read_from_redis(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(12, "Cannot allocate memory")

    if lacks == "memory":
        monkeypatch.setattr(os, "memfd_create", refuse)
    else:
        monkeypatch.delattr(os, lacks)
    add(server, *range(1, 101))
    with query(server, **LIMITED) as running:
        assert running.batch() == list(range(1, 61))
        assert running.batch() == list(range(61, 101))
