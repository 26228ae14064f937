"""The messages of a holder about a group: each state when it begins and when it ends, each dead letter in one line."""

import logging
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from reaper.reasons import FEW_GROUPS
from reaper.recovery.notes import FALSE_RECOVERY_LOG_S, NAME_CHARS, GroupNotes
from reaper.replicas import GroupReport
from reaper.settings import WatchedGroup
from tests.support.virtual_time import VIRTUAL_TIME
from workers.protocol.calls.group_moves import Outcome, Recovered
from workers.protocol.messages import Redelivery
from workers.upkeep.recovery_log import LOG_INTERVAL_S

pytestmark = pytest.mark.anyio

BILLING = WatchedGroup(
    stream="orders",
    group="billing",
    visibility_timeout=timedelta(seconds=30),
    max_deliveries=3,
    redelivery=Redelivery.STREAM,
)
RECOVERED = "recovered stalled deliveries: group=orders/billing consumers={} redelivered={}"
REPORT = GroupReport(group="orders/billing", visibility_ms=30_000, max_deliveries=3, redelivery="stream")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", VIRTUAL_TIME


class Told:
    """Notes on ``orders/billing``, and everything they said."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.notes = GroupNotes(BILLING, lambda: None, set())

    def lines(self) -> list[tuple[str, str]]:
        """Return level and text of each log line since the last call."""
        said = [(record.levelname, record.getMessage()) for record in self._caplog.records]
        self._caplog.clear()
        return said


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


# ---- errors


async def test_an_error_is_told_when_it_begins_and_when_it_has_passed(told: Told) -> None:
    for _ in range(3):
        told.notes.failed("scan", ResponseError("MISCONF"))
    assert told.notes.report.error == "scan: MISCONF"
    for _ in range(3):
        told.notes.worked("scan")
    assert told.notes.report.error == ""
    assert told.lines() == [
        ("ERROR", "cannot serve the group: group=orders/billing task=scan cause=MISCONF"),
        ("INFO", "task works again: group=orders/billing task=scan"),
    ]


async def test_an_outage_of_many_groups_is_logged_for_some_of_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logged = set[str]()
    groups = [BILLING.model_copy(update={"stream": f"orders-{number}"}) for number in range(2 * FEW_GROUPS)]
    many = [GroupNotes(group, lambda: None, logged) for group in groups]
    for notes in many:
        notes.failed("scan", RedisConnectionError("reset"))
    many[-1].failed("scan", ResponseError("MISCONF"))
    for notes in many:
        notes.worked("scan")
    told = Counter(record.levelname for record in caplog.records)
    assert told == {"WARNING": FEW_GROUPS, "ERROR": 1, "INFO": FEW_GROUPS + 1}
    assert logged == set()


async def test_a_lost_connection_is_a_warning(told: Told) -> None:
    told.notes.failed("recover", RedisConnectionError("reset"))
    assert told.lines() == [("WARNING", "cannot serve the group: group=orders/billing task=recover cause=reset")]


async def test_an_error_that_changes_is_told_again(told: Told) -> None:
    for message in ("MISCONF", "OOM", "OOM"):
        told.notes.failed("scan", ResponseError(message))
    assert [line for _, line in told.lines()] == [
        "cannot serve the group: group=orders/billing task=scan cause=MISCONF",
        "cannot serve the group: group=orders/billing task=scan cause=OOM",
    ]


async def test_errors_of_different_work_pass_each_by_itself(told: Told) -> None:
    told.notes.failed("scan", ResponseError("one"))
    told.notes.failed("recover", ResponseError("two"))
    assert told.notes.report.error == "scan: one; recover: two"
    told.notes.call_done()
    assert told.notes.report.error == "scan: one"
    told.notes.scanned(1)
    assert told.notes.report.error == ""


# ---- disabled recovery


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (
            "several_groups",
            (
                "the stream has several groups, so the others would read every copy. "
                "Set redelivery = 'retry-stream' for this group"
            ),
        ),
        (
            "explicit_ids",
            (
                "producers write their own entry IDs, so a copy would move the last ID past them. "
                "Set redelivery = 'retry-stream' for this group"
            ),
        ),
    ],
)
async def test_a_layout_that_cannot_be_served_is_told_with_advice_and_its_end_too(
    told: Told, kind: str, advice: str
) -> None:
    for _ in range(3):
        told.notes.layout(kind)
    assert told.notes.report.disabled == kind
    for _ in range(3):
        told.notes.layout("")
    assert told.notes.report.disabled == ""
    assert told.lines() == [
        ("ERROR", f'recovery disabled: group=orders/billing reason={kind} cause="{advice}"'),
        ("INFO", "recovery enabled again: group=orders/billing"),
    ]


async def test_a_recovery_call_that_goes_through_enables_recovery_again(told: Told) -> None:
    told.notes.report.token = 1
    told.notes.disabled("foreign_namespace", "namespace 'other' serves this group")
    told.notes.call_done()
    assert told.lines() == [
        (
            "ERROR",
            (
                "recovery disabled: group=orders/billing reason=foreign_namespace "
                "cause=\"namespace 'other' serves this group\""
            ),
        ),
        ("INFO", "recovery enabled again: group=orders/billing"),
    ]


async def test_a_missing_group_is_over_once_a_scan_goes_through_and_not_before(told: Told) -> None:
    for _ in range(3):
        told.notes.disabled("no_group", "it does not exist")
    told.notes.layout("")
    assert told.notes.report.disabled == "no_group"
    for _ in range(3):
        told.notes.scanned(7)
    assert (told.notes.report.disabled, told.notes.report.last_scan_ms) == ("", 7)
    assert told.lines() == [
        ("ERROR", 'recovery disabled: group=orders/billing reason=no_group cause="it does not exist"'),
        ("INFO", "recovery enabled again: group=orders/billing"),
    ]


# ---- pauses


async def test_a_pause_is_told_when_it_begins_and_when_it_ends(told: Told) -> None:
    for _ in range(3):
        told.notes.paused()
    assert told.notes.report == replace(REPORT, paused=True)
    for _ in range(3):
        told.notes.call_done()
    assert told.notes.report == REPORT
    assert told.lines() == [
        ("WARNING", 'recovery paused: group=orders/billing to_resume="reaper groups resume orders/billing"'),
        ("WARNING", "recovery resumed: group=orders/billing"),
    ]


# ---- deliveries


def row(outcome: Outcome, entry: bytes = b"1-0", detail: bytes = b"", *, consumer: bytes = b"w1") -> Recovered:
    return Recovered(entry, outcome, detail, 60_000, consumer, b"job-" + entry, 2)


async def test_what_one_call_did_is_counted(told: Told) -> None:
    told.notes.batch([row(outcome) for outcome in Outcome] + [row(Outcome.REDELIVERED)])
    assert told.notes.report == replace(REPORT, recovered=2, undeliverable=1)


async def test_what_was_not_overdue_is_not_told(told: Told) -> None:
    told.notes.batch([row(outcome) for outcome in (Outcome.GONE, Outcome.NOT_DUE, Outcome.PUT_OFF)])
    assert (told.lines(), told.notes.report) == ([], REPORT)


async def test_what_moved_is_one_line_however_many_there_are(told: Told) -> None:
    moved = [row(Outcome.REDELIVERED, b"%d-0" % number) for number in range(5)]
    told.notes.batch([*moved, row(Outcome.QUARANTINED), row(Outcome.QUARANTINED, consumer=b"w0")])
    assert told.lines() == [
        (
            "INFO",
            'recovered stalled deliveries: group=orders/billing consumers="w0, w1" redelivered=5 quarantined=2',
        )
    ]


async def test_a_mass_is_logged_once_a_second_with_its_sum(told: Told) -> None:
    for consumer in (b"w0", b"w1", b"w2"):
        told.notes.batch([row(Outcome.REDELIVERED, consumer=consumer)])
    assert [line for _, line in told.lines()] == [RECOVERED.format("w0", 1)]
    told.notes.scanned(7)
    assert told.lines() == []
    await anyio.sleep(LOG_INTERVAL_S)
    told.notes.scanned(7)
    assert [line for _, line in told.lines()] == [RECOVERED.format('"w1, w2"', 2)]
    told.notes.batch([row(Outcome.REDELIVERED)])
    told.notes.recovery_log.log(at_the_end=True)
    assert [line for _, line in told.lines()] == [RECOVERED.format("w1", 1)]


async def test_of_many_consumers_the_line_names_three(told: Told) -> None:
    told.notes.batch([row(Outcome.REDELIVERED, consumer=b"w%d" % number) for number in range(5)])
    assert 'consumers="w0, w1, w2 …" ' in told.lines()[0][1]


async def test_each_dead_letter_is_one_line_with_everything_that_names_it(told: Told) -> None:
    told.notes.batch([row(Outcome.DEAD_LETTERED, b"%d-0" % number, b"9-%d" % number) for number in (1, 2)])
    assert told.lines() == [
        (
            "ERROR",
            (
                f"job dead-lettered: group=orders/billing job=job-{number}-0 dead_letter=9-{number} limit=3 "
                "consumer=w1 reason=max_deliveries"
            ),
        )
        for number in (1, 2)
    ]


async def test_a_lost_payload_is_an_error(told: Told) -> None:
    told.notes.batch([row(Outcome.LOST_PAYLOAD)])
    assert told.lines() == [
        (
            "ERROR",
            "entry was deleted while pending, its payload is lost: group=orders/billing entry=1-0",
        )
    ]


async def test_what_cannot_be_copied_is_an_error_and_counts_until_the_next_full_scan(told: Told) -> None:
    told.notes.batch([row(Outcome.HELD, detail=b"too many fields")])
    assert told.lines() == [
        (
            "ERROR",
            (
                "cannot redeliver an entry, retrying at the next full scan: group=orders/billing entry=1-0 "
                'cause="too many fields"'
            ),
        )
    ]
    assert told.notes.report.undeliverable == 1
    told.notes.scanned_fully(7, entries=1)
    assert told.notes.report == replace(REPORT, undeliverable=0, scan_entries=1, last_full_scan_ms=7)


async def test_names_from_outside_neither_break_a_line_nor_forge_one(told: Told) -> None:
    name = b"\xff\ndead letter 9-0: \x1b[2J"
    shown = r"\xff\ndead letter 9-0: \x1b[2J"
    told.notes.batch([row(Outcome.DEAD_LETTERED, consumer=name), row(Outcome.REDELIVERED, consumer=name)])
    told.notes.false_recovery(name, 1)
    assert [shown in line and line.isprintable() for _, line in told.lines()] == [True] * 3


# ---- false recoveries


async def test_false_recoveries_are_logged_once_a_minute_and_counted_always(told: Told) -> None:
    for _ in range(2):
        told.notes.false_recovery(b"web", 2)
    ((level, line),) = told.lines()
    assert level == "WARNING"
    assert "group=orders/billing consumer=web false_recoveries=2" in line
    tally = told.notes.report
    assert (tally.false_recoveries, tally.false_recoveries_of) == (4, {"web": 4})
    await anyio.sleep(FALSE_RECOVERY_LOG_S)
    told.notes.false_recovery(b"x" * 10_000, 2)
    assert len(told.lines()) == 1
    assert tally.false_recoveries_of == {"web": 4, "x" * NAME_CHARS: 2}
