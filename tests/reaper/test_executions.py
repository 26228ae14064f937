"""Executions as a leader sees them: one for each owner in turn, however often Redis has counted."""

from typing import Any

from reaper.recovery.executions import MOST_KNOWN, MOST_SAMPLED, Counts, Executions
from workers.protocol.keys import RESTORED_CONSUMER

ONE = b"1-0"


def seen(*owners: bytes, executions: Executions | None = None) -> Executions:
    executions = executions or Executions()
    for count, owner in enumerate(owners, start=1):
        executions.looked([[ONE, owner, 0, count]])
    return executions


def test_each_owner_in_turn_is_an_execution_and_a_read_of_history_is_none() -> None:
    assert seen(b"web").of(ONE) == seen(b"web", b"web", b"web").of(ONE) == 1
    assert seen(b"web", b"other", b"other", b"web").of(ONE) == 3
    assert Executions().of(ONE) == 1


def test_what_we_or_nobody_owns_is_no_execution() -> None:
    assert seen(b"web", RESTORED_CONSUMER.encode()).of(ONE) == 1
    assert seen(b"web", b"").of(ONE) == 1


def test_what_a_full_scan_does_not_meet_is_forgotten_with_the_next() -> None:
    executions = seen(b"web", b"other")
    executions.begin()
    assert executions.of(ONE) == 2, "it is under way"
    seen(b"third", executions=executions)
    executions.begin()
    executions.begin()
    assert executions.of(ONE) == 1


def test_it_stays_small() -> None:
    executions = Executions()
    executions.looked([[b"%d-0" % number, b"web", 0, 1] for number in range(MOST_KNOWN + 10)])
    assert len(executions._known) == MOST_KNOWN


# ---- counts that rise


def test_a_count_that_rises_with_its_owner_is_a_read_of_history_and_with_another_it_is_none() -> None:
    counts = Counts()
    assert counts.looked([[ONE, b"web", 0, 2]]) == [], "it may have risen long ago"
    assert counts.looked([[ONE, b"web", 0, 2]]) == []
    assert counts.looked([[ONE, b"web", 0, 4]]) == [b"web"]
    assert counts.looked([[ONE, b"other", 0, 5]]) == []
    assert counts.looked([[ONE, b"other", 0, 6]]) == [b"other"]


def test_of_many_a_sample_is_looked_at_that_makes_room_for_others() -> None:
    counts = Counts()
    rows: list[list[Any]] = [[b"%d-0" % number, b"web", 0, 2] for number in range(2 * MOST_SAMPLED)]
    risen = [[*row[:3], 3] for row in rows]
    counts.looked(rows)
    assert len(counts.looked(risen)) == MOST_SAMPLED
    counts.keep({row[0] for row in rows[MOST_SAMPLED:]})
    counts.looked(rows[MOST_SAMPLED:])
    assert len(counts.looked(risen[MOST_SAMPLED:])) == MOST_SAMPLED
