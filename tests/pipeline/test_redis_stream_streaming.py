"""Streaming queries with the calls of Spark, about offsets, limits, streams that come and go, and loss."""

from collections.abc import Callable

import pytest

from reaper.pipeline.redis_stream import DataLossError
from tests.pipeline.streams import JOURNAL, add, connected, counts, delete, pages_of, query, small_pages, trim
from tests.support.servers import RedisServer

pytestmark = pytest.mark.contract


# ---- how far


def test_offsets_tell_ids_and_numbers(server: RedisServer) -> None:
    add(server, 1, 2, 3)
    with query(server, maxEntriesPerTrigger=2) as running:
        numbers = [running.batch() for _ in range(3)]
        told = running.offset[JOURNAL]
    assert numbers == [[1, 2], [3], []]
    assert told == ({"id": "3-0", "added": 3} if counts(server) else {"id": "3-0"})


def test_an_offset_stays_the_same_while_nothing_is_added(server: RedisServer) -> None:
    add(server, 1)
    with query(server) as running:
        running.batch()
        assert running.plan() == running.offset


def test_the_first_batch_is_the_same_when_it_is_repeated(server: RedisServer) -> None:
    """Spark stores the end of the first batch, and asks for the initial offset again."""
    add(server, 1, 2)
    trim(server, 1)
    with query(server) as running:
        running.start()
        end = running.plan()
    add(server, 3)
    with query(server) as resumed:
        resumed.start()
        resumed.planned = list(resumed.reader.partitions(resumed.offset, end))  # type: ignore[arg-type]
        assert [row["n"] for row in resumed.read()] == ["2"]


def test_available_now_ends_with_what_was_there(server: RedisServer) -> None:
    add(server, 1, 2, 3)
    with query(server, maxEntriesPerTrigger=2, streamPattern="*") as running:
        running.start()
        running.reader.prepareForTriggerAvailableNow()
        add(server, 4)
        add(server, 5, stream="later")
        assert [running.batch() for _ in range(3)] == [[1, 2], [3], []]
        assert running.plan() == running.offset


def test_a_limit_is_shared_by_streams_and_small_ones_leave_theirs_to_others(server: RedisServer) -> None:
    add(server, *range(1, 9), stream="large")
    add(server, 101, 102, stream="small")
    with query(server, streamPattern="large,small", maxEntriesPerTrigger=6) as running:
        assert sorted(running.batch()) == [1, 2, 3, 4, 101, 102]
        assert sorted(running.batch()) == [5, 6, 7, 8]


def test_a_batch_is_cut_where_that_is_worth_it(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with small_pages(10, part=30), query(server, partitions=8) as running:
        running.plan()
        sizes = [sum(map(len, pages_of(server, part))) for part in running.planned]
    assert sum(sizes) == 100
    assert not counts(server) or 2 <= len(sizes) <= 4


def test_small_batches_are_not_cut(server: RedisServer) -> None:
    add(server, 1, 2, 3)
    with query(server, partitions=8) as running:
        running.plan()
        assert len(running.planned) == (1 if counts(server) else len(running.planned))
        assert len(running.read()) == 3


def test_progress_shows_how_far_a_query_is_behind(server: RedisServer) -> None:
    add(server, 1, 2, 3)
    with query(server, maxEntriesPerTrigger=2) as running:
        running.plan()
        told = running.reader.reportLatestOffset()
    assert told == {JOURNAL: {"id": "3-0", **({"added": 3, "behind": 1} if counts(server) else {})}}


# ---- streams that come and go


def test_a_new_stream_of_the_pattern_is_read_from_its_beginning(server: RedisServer) -> None:
    add(server, 1, stream="a:journal")
    with query(server, streamPattern="*:journal") as running:
        assert running.batch() == [1]
        add(server, 2, stream="b:journal")
        add(server, 3, stream="a:journal")
        assert sorted(running.batch()) == [2, 3]
        assert running.batch() == []


def test_a_new_stream_that_was_trimmed_at_once_has_lost_something(server: RedisServer) -> None:
    with query(server, streamPattern="*:journal") as running:
        running.batch()
        add(server, 1, 2, 3, stream="b:journal")
        trim(server, 1, "b:journal")
        if not counts(server):
            assert running.batch() == [3]
            return
        with pytest.raises(DataLossError, match=r"stream b:journal: 2 entries after 0-0 were trimmed"):
            running.batch()


def test_an_old_stream_that_is_added_to_the_options_begins_with_what_is_there(server: RedisServer) -> None:
    add(server, 1, stream="a")
    add(server, 2, 3, stream="b")
    trim(server, 1, "b")
    with query(server, streamPattern="a") as running:
        running.batch()
    with query(server, streamPattern="a,b", checkpoint=running) as resumed:
        assert resumed.batch() == [3]


def test_a_stream_that_is_no_longer_asked_for_keeps_its_place(server: RedisServer) -> None:
    add(server, 1, stream="a")
    add(server, 2, stream="b")
    with query(server, streamPattern="a,b") as running:
        running.batch()
    add(server, 3, stream="b")
    with query(server, streamPattern="a", checkpoint=running) as less:
        assert less.batch() == []
    with query(server, streamPattern="a,b", checkpoint=less) as again:
        assert again.batch() == [3]


def test_a_stream_that_is_gone_stops_the_query(server: RedisServer) -> None:
    add(server, 1, 2, stream="a:journal")
    with query(server, streamPattern="*:journal") as running:
        running.batch()
        server.command("DEL", "a:journal")
        with pytest.raises(DataLossError, match="stream a:journal: it is gone"):
            running.batch()


def test_a_stream_that_is_gone_stops_a_later_run_with_available_now(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server) as running:
        running.batch()
    server.command("DEL", JOURNAL)
    with query(server, checkpoint=running, discoverSeconds=10) as resumed:
        resumed.reader.prepareForTriggerAvailableNow()
        with pytest.raises(DataLossError, match="it is gone"):
            resumed.batch()


def test_a_stream_that_comes_back_is_read_where_loss_is_accepted(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server, failOnDataLoss=False) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        assert running.batch() == []
        add(server, 3, 4)
        assert running.batch() == [3, 4]


# ---- loss


def test_entries_trimmed_unread_stop_the_query_with_their_number(server: RedisServer) -> None:
    add(server, *range(1, 6))
    with query(server) as running:
        running.batch()
        add(server, *range(6, 21))
        trim(server, 9)
        if not counts(server):
            assert running.batch() == list(range(12, 21))
            return
        with pytest.raises(DataLossError, match="stream journal: 6 entries after 5-0 were trimmed before being read"):
            running.batch()


def test_loss_that_is_accepted_is_logged_once_by_each_query_and_the_rest_is_read(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    if not counts(server):
        return
    for queries in (1, 2):
        with connected(server) as client:
            client.delete(JOURNAL)
        add(server, *range(1, 6))
        with query(server, failOnDataLoss=False) as running:
            running.batch()
            add(server, *range(1006, 1021))
            trim(server, 9)
            running.plan()
            assert running.batch() == list(range(1012, 1021))
            add(server, 1021)
            assert running.batch() == [1021]
        assert len([line for line in caplog.messages if "data loss" in line]) == queries


def test_trimming_and_deleting_what_was_read_is_no_loss(server: RedisServer) -> None:
    add(server, *range(1, 11))
    with query(server, maxEntriesPerTrigger=5) as running:
        assert running.batch() == [1, 2, 3, 4, 5]
        delete(server, 3)
        trim(server, 6)  # up to the last one read, which stays
        assert running.batch() == [6, 7, 8, 9, 10]
        delete(server, 7, 8)
        trim(server, 0)
        add(server, 11)
        assert running.batch() == [11]


def test_deletes_may_take_unread_entries(server: RedisServer) -> None:
    """Dead letters are deleted one by one when they are redriven."""
    add(server, 1, 2, 3)
    with query(server) as running:
        running.batch()
        add(server, 4, 5)
        delete(server, 1, 2, 3, 4)
        assert running.batch() == [5]


Step = tuple[Callable[..., object], tuple[object, ...]]
GONE: Step = (lambda server: server.command("DEL", JOURNAL), ())
LOSSES: dict[str, tuple[int | None, int, list[Step], str]] = {
    "a limit does not spoil the count": (7, 20, [(trim, (10,))], "3 entries after 7-0 were trimmed"),
    "an emptied stream": (None, 2, [(add, (3, 4)), (trim, (0,))], "2 entries after 2-0 were trimmed"),
    "created anew": (None, 5, [GONE, (add, (7, 8))], "now it counts 2 in all: it was deleted and created anew"),
    "created anew, and longer": (None, 3, [GONE, (add, tuple(range(11, 20)))], "it counts 0 removed"),
    "a lost end": (None, 4, [GONE, (add, (1, 2))], "its last ID is 2-0, and it had been read up to 4-0"),
    "a lost end below new entries": (
        None,
        4,
        [GONE, (add, (1, 2, *range(5, 11)))],
        "4-0 had been read and is missing, although older entries exist",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_loss_stops_the_query(server: RedisServer, name: str, partitions: int) -> None:
    limit, number, steps, sentence = LOSSES[name]
    add(server, *range(1, number + 1))
    with small_pages(1), query(server, partitions=partitions, maxEntriesPerTrigger=limit or 100) as running:
        running.batch()
        for act, given in steps:
            act(server, *given)
        if not counts(server) and name != "a lost end":
            running.batch()  # uncounted entries cannot be missed
            return
        with pytest.raises(DataLossError, match=f"stream journal: .*{sentence}"):
            running.batch()


def test_after_an_accepted_lost_end_new_entries_are_read(server: RedisServer) -> None:
    add(server, 1, 2, 3, 4)
    with query(server, failOnDataLoss=False) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        add(server, 1, 2)
        assert running.batch() == []
        add(server, 3)
        assert running.batch() == [3]


# ---- trimming between planning and reading


def test_entries_trimmed_after_planning_stop_the_task(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server) as running:
        running.batch()
        add(server, *range(3, 11))
        running.plan()
        trim(server, 5)
        if not counts(server):
            assert [int(row["n"]) for row in running.read()] == list(range(6, 11))
            return
        with pytest.raises(DataLossError, match="3 entries after 2-0 were trimmed"):
            running.read()


def test_entries_trimmed_while_a_task_reads_stop_it(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with small_pages(10), query(server) as running:
        running.plan()
        pages = pages_of(server, running.planned[0])
        read = [next(pages), next(pages)]  # a page of one, and one of ten
        trim(server, 50)
        if not counts(server):
            assert sum(map(len, pages)) == 50
            return
        with pytest.raises(DataLossError, match="39 entries after 11-0 were trimmed"):
            list(pages)
    assert sum(map(len, read)) == 11


def test_trimming_behind_a_task_that_reads_is_no_loss(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with small_pages(10), query(server) as running:
        running.plan()
        pages = pages_of(server, running.planned[0])
        first = [*next(pages), *next(pages)]
        trim(server, 90)  # up to the last but one
        assert first + [number for page in pages for number in page] == list(range(1, 101))


def test_a_part_whose_first_entry_was_deleted_is_read(server: RedisServer) -> None:
    add(server, 1)
    with small_pages(10, part=50), query(server, partitions=2) as running:
        running.batch()
        add(server, *range(2, 102))
        running.plan()
        opening = running.planned[1].opens_with
        assert opening
        delete(server, opening[0])
        assert len(running.read()) == 99


def test_a_part_whose_beginning_was_trimmed_stops_its_task(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with small_pages(10, part=50), query(server, partitions=2) as running:
        running.plan()
        assert len(running.planned) == 2
        trim(server, 20)
        if not counts(server):
            return
        with pytest.raises(
            DataLossError, match=r"entries from 5\d-0 on were trimmed before being read, after the read"
        ):
            list(running.reader.read(running.planned[1]))


def test_a_stream_deleted_after_planning_stops_the_task(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server) as running:
        running.batch()
        add(server, 3)
        running.plan()
        server.command("DEL", JOURNAL)
        with pytest.raises(DataLossError, match="it is gone"):
            running.read()
