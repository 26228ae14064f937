"""Streaming queries, asked for what Spark asks: offsets, limits, streams that come and go, loss."""

from typing import Any

import pytest

from reaper.pipeline.redis_stream import DataLossError
from reaper.pipeline.redis_stream.columns import read_range
from tests.pipeline.streams import JOURNAL, ROW, add, connected, counts, delete, parse, query, trim
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


def test_latest_begins_behind_what_is_there(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server, startingId="latest") as running:
        running.start()
        add(server, 3)
        assert running.batch() == [3]


def test_an_id_can_be_where_it_begins(server: RedisServer) -> None:
    add(server, 1, 2, 3)
    with query(server, startingId="2-0") as running:
        assert running.batch() == [2, 3]


def test_each_stream_may_begin_elsewhere(server: RedisServer) -> None:
    add(server, 1, 2, stream="a")
    add(server, 1, 2, stream="b")
    with query(server, stream="a,b", startingId='{"a": "2-0", "b": "latest"}') as running:
        running.start()
        add(server, 3, stream="b")
        assert running.batch() == [2, 3]


@pytest.mark.parametrize("delay", ["1d", "0s"])
def test_a_batch_waits_until_it_is_worth_it_or_has_waited_long_enough(server: RedisServer, delay: str) -> None:
    add(server, 1)
    with query(server, minEntriesPerTrigger=3, maxTriggerDelay=delay) as running:
        found = [running.batch()]
        for number in (2, 3, 4):
            add(server, number)
            if number > 2:
                found.append(running.batch())
    waits = delay == "1d" and counts(server)
    assert found == ([[1], [], [2, 3, 4]] if waits else [[1], [2, 3], [4]])


def test_the_first_batch_does_not_wait_however_late_it_comes(server: RedisServer) -> None:
    with query(server, minEntriesPerTrigger=3, maxTriggerDelay="1d", failOnMissing="false") as running:
        assert running.batch() == []
        add(server, 1)
        assert running.batch() == [1]


def test_what_a_new_stream_loses_while_a_batch_waits_is_loss(server: RedisServer) -> None:
    add(server, 1, stream="a:journal")
    with query(server, streamPattern="*:journal", minEntriesPerTrigger=9, maxTriggerDelay="1d") as running:
        assert running.batch() == [1]
        add(server, 1, 2, 3, stream="b:journal")
        if not counts(server):
            assert running.batch() == [1, 2, 3], "nothing waits where nobody counts"
            return
        assert running.batch() == []
        trim(server, 1, stream="b:journal")
        with pytest.raises(DataLossError, match="stream b:journal: 2 entries after 0-0 were trimmed"):
            running.batch()


def test_what_is_read_now_and_no_later_does_not_wait(server: RedisServer) -> None:
    add(server, 1)
    with query(server, minEntriesPerTrigger=3, maxTriggerDelay="1d") as running:
        found = [running.batch()]
        add(server, 2)
        running.reader.prepareForTriggerAvailableNow()
        found.append(running.batch())
    assert found == [[1], [2]]


def test_the_first_batch_is_the_same_when_it_is_repeated(server: RedisServer) -> None:
    """Spark stores the end of the first batch, and asks for the initial offset again."""
    with query(server, startingId="latest", failOnMissing="false") as running:
        running.start()
        add(server, 1, 2)
        end = running.plan()
    with query(server, startingId="latest") as resumed:
        resumed.start()
        resumed.planned = list(resumed.reader.partitions(resumed.offset, end))  # type: ignore[arg-type]
        assert [row["n"] for row in resumed.read()] == ["1", "2"]


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
    with query(server, stream="large,small", maxEntriesPerTrigger=6) as running:
        assert sorted(running.batch()) == [1, 2, 3, 4, 101, 102]
        assert sorted(running.batch()) == [5, 6, 7, 8]


def test_a_limited_batch_is_cut_into_even_parts(server: RedisServer) -> None:
    add(server, *range(1, 10), 1000)
    with query(server, maxEntriesPerTrigger=9, pageSize=3, partitions=3) as running:
        running.plan()
        sizes = [sum(batch.num_rows for batch in running.reader.read(part)) for part in running.planned]
    assert (sum(sizes), len(sizes)) == (9, 3)
    assert max(sizes) - min(sizes) <= 3  # a page


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
    with query(server, streamPattern="*:journal", startingId="latest") as running:
        running.start()
        add(server, 2, stream="b:journal")
        add(server, 3, stream="a:journal")
        assert sorted(running.batch()) == [2, 3]
        assert running.batch() == []


def test_a_listed_stream_may_come_later(server: RedisServer) -> None:
    with query(server, startingId="latest", failOnMissing="false") as running:
        assert running.batch() == []
        add(server, 1)
        assert running.batch() == [1]


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
    with query(server, stream="a") as running:
        running.batch()
    with query(server, stream="a,b", checkpoint=running) as resumed:
        assert resumed.batch() == [3]


def test_a_stream_that_is_no_longer_asked_for_keeps_its_place(server: RedisServer) -> None:
    add(server, 1, stream="a")
    add(server, 2, stream="b")
    with query(server, stream="a,b") as running:
        running.batch()
    add(server, 3, stream="b")
    with query(server, stream="a", checkpoint=running) as less:
        assert less.batch() == []
    with query(server, stream="a,b", checkpoint=less) as again:
        assert again.batch() == [3]


@pytest.mark.parametrize(("option", "value"), [("stream", "a:journal"), ("streamPattern", "*:journal")])
def test_a_stream_that_is_gone_stops_the_query(server: RedisServer, option: str, value: Any) -> None:
    add(server, 1, 2, stream="a:journal")
    with query(server, **{option: value}) as running:
        running.batch()
        server.command("DEL", "a:journal")
        with pytest.raises(DataLossError, match="stream a:journal: it is gone"):
            running.batch()


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
        number = "6 entries after 5-0 were trimmed before being read"
        only_ids = "entries after 5-0 may have been trimmed.*the oldest entry left is 12-0. Only IDs can be compared"
        with pytest.raises(DataLossError, match=f"stream journal: {number if counts(server) else only_ids}"):
            running.batch()


def test_loss_that_is_accepted_is_logged_once_by_each_query_and_the_rest_is_read(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
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
        add(server, 11)
        assert running.batch() == [11]


def test_where_entries_are_counted_everything_read_may_be_trimmed(server: RedisServer) -> None:
    add(server, *range(1, 6))
    with query(server) as running:
        running.batch()
        trim(server, 0)
        assert running.batch() == []
        add(server, 6)
        if not counts(server):
            with pytest.raises(DataLossError, match="Only IDs can be compared"):
                running.batch()
            return
        assert running.batch() == [6]
        delete(server, 6)
        add(server, 7)
        assert running.batch() == [7]


def test_a_limit_does_not_spoil_the_count(server: RedisServer) -> None:
    add(server, *range(1, 21))
    with query(server, maxEntriesPerTrigger=7) as running:
        running.batch()
        trim(server, 10)
        number = "3 entries after 7-0 were trimmed"
        with pytest.raises(DataLossError, match=number if counts(server) else "after 7-0 may have been trimmed"):
            running.batch()


def test_an_emptied_stream_with_unread_entries_is_loss(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server) as running:
        running.batch()
        add(server, 3, 4)
        trim(server, 0)
        number = "2 entries after 2-0 were trimmed"
        with pytest.raises(DataLossError, match=number if counts(server) else "all entries after 2-0 were trimmed"):
            running.batch()


def test_ignored_deletes_may_take_unread_entries(server: RedisServer) -> None:
    """Dead letters are deleted one by one when they are redriven."""
    add(server, 1, 2, 3)
    with query(server, ignoreDeletes=True) as running:
        running.batch()
        add(server, 4, 5)
        delete(server, 1, 2, 3, 4)
        assert running.batch() == [5]


def test_a_stream_created_anew_stops_the_query(server: RedisServer) -> None:
    add(server, *range(1, 6))
    with query(server) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        add(server, 7, 8)
        found = "now it counts 2 in all: it was deleted and created anew" if counts(server) else "may have been trimmed"
        with pytest.raises(DataLossError, match=f"stream journal: .*{found}"):
            running.batch()


def test_a_stream_created_anew_that_has_grown_past_the_old_one_is_noticed(server: RedisServer) -> None:
    add(server, 1, 2, 3)
    with query(server) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        add(server, *range(11, 20))
        found = "all of them are gone, and it counts 0 removed" if counts(server) else "may have been trimmed"
        with pytest.raises(DataLossError, match=found):
            running.batch()


def test_a_lost_end_stops_the_query(server: RedisServer) -> None:
    add(server, 1, 2, 3, 4)
    with query(server) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        add(server, 1, 2)  # what a replica had that was promoted
        with pytest.raises(DataLossError, match="its last ID is 2-0, and it had been read up to 4-0"):
            running.batch()


@pytest.mark.parametrize("limits", [{}, {"maxEntriesPerTrigger": 4}, {"maxEntriesPerTrigger": 4, "partitions": 3}])
def test_a_lost_end_under_new_entries_is_noticed_by_the_missing_anchor(
    server: RedisServer, limits: dict[str, Any]
) -> None:
    """Also where tasks are handed what the planner of a limited batch has read on its way."""
    add(server, 1, 2, 3, 4)
    with query(server, pageSize=1, **limits) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        add(server, 1, 2, *range(5, 11))
        found = "4-0 had been read and is missing, although older entries are there" if counts(server) else None
        if found:
            with pytest.raises(DataLossError, match=found):
                running.batch()
        else:  # there, it may have been deleted by XDEL
            assert [*running.batch(), *running.batch()] == list(range(5, 11))


def test_after_an_accepted_lost_end_new_entries_are_read(server: RedisServer) -> None:
    add(server, 1, 2, 3, 4)
    with query(server, failOnDataLoss=False) as running:
        running.batch()
        server.command("DEL", JOURNAL)
        add(server, 1, 2)
        assert running.batch() == []
        add(server, 3)
        assert running.batch() == [3]


# ---- what is trimmed between planning and reading


def test_entries_trimmed_after_planning_stop_the_task(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server) as running:
        running.batch()
        add(server, *range(3, 11))
        running.plan()
        trim(server, 5)
        number = "3 entries after 2-0 were trimmed"
        with pytest.raises(DataLossError, match=number if counts(server) else "after 2-0 may have been trimmed"):
            running.read()


def test_entries_trimmed_while_a_task_reads_stop_it(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with query(server) as running:
        running.plan()
        options = parse(server, pageSize=10, batchSize=10)
        batches = read_range(running.planned[0], options, ROW)
        read = sum(
            next(batches).num_rows for _ in range(2)
        )  # a page of one, two of ten; the next one is asked for by now
        trim(server, 50)
        rest = r"19 entries after 31-0 were trimmed"
        with pytest.raises(DataLossError, match=rest if counts(server) else "after 31-0 may have been trimmed"):
            list(batches)
    assert read == 21


def test_trimming_behind_a_task_that_reads_is_no_loss(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with query(server) as running:
        running.plan()
        batches = read_range(running.planned[0], parse(server, pageSize=10, batchSize=10), ROW)
        first = next(batches)
        trim(server, 85)  # 15 of 20 that were read or asked for
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 100


def test_a_part_whose_beginning_was_trimmed_stops_its_task(server: RedisServer) -> None:
    add(server, *range(1, 101))
    with query(server, partitions=2, pageSize=10) as running:
        running.plan()
        trim(server, 20)
        assert len(running.planned) == 2
        with pytest.raises(
            DataLossError, match=r"entries from 5\d-0 on were trimmed before being read, after the read"
        ):
            list(running.reader.read(running.planned[1]))


def test_a_part_whose_first_entry_was_deleted_is_read(server: RedisServer) -> None:
    add(server, 1)
    with query(server, partitions=2, pageSize=10) as running:
        running.batch()
        add(server, *range(2, 102))
        running.plan()
        opening = running.planned[1].opens_with
        assert opening
        delete(server, opening[0])
        assert len(running.read()) == 99


def test_a_stream_deleted_after_planning_stops_the_task(server: RedisServer) -> None:
    add(server, 1, 2)
    with query(server) as running:
        running.batch()
        add(server, 3)
        running.plan()
        server.command("DEL", JOURNAL)
        with pytest.raises(DataLossError, match="it is gone"):
            running.read()
