"""Events of jobs, written by hand as a journal would hold them. Times are in ms; a job's name is when it was enqueued.

Visibility timeout 3,000. The results of each analysis were calculated by hand, and are in the tests.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

JOURNAL, NAMESPACE_JOURNAL, GROUP = "{orders}:journal", "{reaper}:journal", "billing"
VISIBILITY_MS = 3_000
Row = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def event(name: str, at: int, job: str | None = None, *, seq: int = 0, stream: str = JOURNAL, **data: Any) -> Row:
    """One event of the lake; columns that are not given are null."""
    instant = EPOCH + timedelta(milliseconds=at)
    common = {"id": f"{at}-{seq}", "stream": stream, "at": instant, "seq": seq, "event": name, "date": instant.date()}
    group = {"group": GROUP} if stream == JOURNAL else {}
    return {**common, "job": job, **group, **data}


def about(job: str, delivery: int, entry: str | None = None, *, consumer: str = "w1", generation: int = 0) -> Row:
    """What every event of a delivery says. ``w1`` is a worker; its consumer has the nonce of a process."""
    return {
        "job": f"{job}-0",
        "entry": f"{entry or job}-0",
        "delivery": delivery,
        "generation": generation,
        "consumer": f"{consumer}~{'0123456789ab'}",
        "mode": "reaper",
        "enqueued_ms": int(job),
    }


def settled(name: str, at: int, run: int, delivery: Row, wait: int = 0, late: int = 0, **data: Any) -> Row:
    """The worker's word: it took the job and began it at once, and ``late`` ms after its end the word is there."""
    begun = at - late - run
    times = {"ready_ms": begun - wait, "delivered_ms": begun, "begun_ms": begun, "run_ms": run}
    return event(name, at, **{**times, **delivery, **data})


def acked(at: int, run: int, delivery: Row, wait: int = 0, late: int = 0, **data: Any) -> Row:
    return settled("acked", at, run, delivery, wait, late, **data)


def rejected(at: int, run: int, delivery: Row, verb: str = "ack", late: int = 0) -> Row:
    return settled("rejected", at, run, delivery, late=late, verb=verb)


def recovered(
    at: int, idle: int, delivery: Row, new_entry: str | None = None, name: str = "recovered", **data: Any
) -> Row:
    timed = {"idle_ms": idle, "visibility_ms": VISIBILITY_MS, "token": 1, "reason": "visibility_timeout"}
    new = {"new_entry": f"{new_entry}-0"} if new_entry else {}
    return event(name, at, **{**delivery, **timed, **new, **data})


def quarantined(at: int, idle: int, delivery: Row, reason: str = "last_delivery") -> Row:
    return recovered(at, idle, delivery, name="quarantined", reason=reason)


def released(at: int, delivery: Row, new_entry: str) -> Row:
    data = {**delivery, "consumer": None}
    return event("recovered", at, token=1, reason="released", new_entry=f"{new_entry}-0", **data)


def nacked(at: int, run: int, delivery: Row, **data: Any) -> Row:
    return settled("nacked", at, run, delivery, **data)


# ---- stories

PLAIN = [acked(1_105, 100, about("1000", 1), wait=5, type="mail")]

CRASH = [
    recovered(5_010, 3_010, about("2000", 1), "5010"),
    acked(5_610, 500, about("2000", 2, "5010"), wait=100, type="mail"),
]
"""Its worker died. Recovered 10 late, started again at 5,110: 100 later."""

SLOW = [
    recovered(6_004, 3_004, about("3000", 1), "6004"),
    rejected(6_505, 3_500, about("3000", 1)),
    acked(9_604, 3_500, about("3000", 2, "6004", consumer="w2")),
]
"""Alive, and longer than the visibility timeout: done twice."""

LATE = [
    recovered(7_050, 3_050, about("4000", 1, consumer="w2"), "7050"),
    rejected(7_100, 1_200, about("4000", 1, consumer="w2")),
    acked(8_100, 1_000, about("4000", 2, "7050")),
]
"""Done in time, and settled too late: done twice."""

CUT_OFF = [
    recovered(30_050, 3_050, about("27000", 1), "30050"),
    acked(31_100, 1_000, about("27000", 2, "30050", consumer="w2")),
    rejected(35_000, 1_200, about("27000", 1), late=6_800),
]
"""Its worker was cut off from Redis: it began at 27,000, and its word came after those of its successor."""

CUT_OFF_AND_SLOW = [
    recovered(31_030, 3_030, about("28000", 1), "31030"),
    acked(31_150, 100, about("28000", 2, "31030", consumer="w2")),
    rejected(41_000, 3_500, about("28000", 1), late=9_500),
]
"""The same, and it would have been too slow anyway."""

LATE_BUT_FIRST = [
    recovered(32_020, 3_020, about("29000", 1), "32020"),
    acked(34_000, 1_500, about("29000", 1), late=3_500),
    rejected(34_100, 2_000, about("29000", 2, "32020", consumer="w2")),
]
"""The late word comes before its successor's, and is the one that counts: the first completion wins."""

EARLY = [
    recovered(7_990, 2_990, about("5000", 1), "7990"),
    rejected(8_200, 3_200, about("5000", 1)),
    acked(11_190, 3_200, about("5000", 2, "7990")),
]
"""Recovered 10 too early."""

FAILS = [
    nacked(6_100, 100, about("6000", 1), new_entry="6100-0", error="ValueError: no"),
    nacked(6_250, 100, about("6000", 2, "6100"), due_ms=8_000, reason="timeout"),
    acked(8_200, 100, about("6000", 3, "8000")),
]
"""Failed twice; the second retry was scheduled."""

WAITS = [
    nacked(7_100, 50, about("7000", 1), new_entry="7100-0", verb="retry"),
    acked(7_300, 100, about("7000", 1, "7100")),
]
"""A failure that does not count: the next delivery is the first still."""

LEAVES = [
    event("handed_back", 8_400, run_ms=0, delivered_ms=8_100, new_entry="8400-0", **about("8000", 1)),
    settled("handed_back", 9_400, 700, about("8000", 1, "8400"), delivered_ms=8_600, new_entry="9400-0"),
    acked(9_900, 300, about("8000", 1, "9400", consumer="w2")),
]
"""Handed back before it began, and again in the midst of it: started twice."""

POISON = [
    recovered(12_020, 3_020, about("9000", 1), "12020"),
    quarantined(15_500, 3_000, about("9000", 2, "12020", consumer="w2")),
    released(15_600, about("9000", 2, "12020"), "15600"),
    recovered(
        19_000, 3_100, about("9000", 3, "15600"), name="dead_lettered", dead_letter="19000-0", reason="max_deliveries"
    ),
]
"""Killed every worker: started at 9,000, 12,500 and 15,900."""

COMPANY = [
    quarantined(20_000, 3_000, about("10000", 2, "12000"), reason="not_released"),
    released(20_100, about("10000", 2, "12000"), "20100"),
    acked(20_400, 200, about("10000", 3, "20100")),
]
"""Its third delivery crashed beside another quarantined job: journalled as the second, and run again."""

REDRIVEN = [
    settled("dead_lettered", 22_000, 10, about("12000", 1), reason="rejected"),
    event("redriven", 30_000, new_entry="30000-0", **about("12000", 0, "22000", generation=1) | {"consumer": None}),
    acked(30_100, 50, about("12000", 1, "30000", generation=1)),
]

TWICE = [acked(13_100, 100, about("13000", 1)), acked(13_900, 100, about("13000", 1, consumer="w2"), seq=1)]
"""Acknowledged in two entries: what must never be."""
TWICE[1]["entry"] = "13500-0"

TWICE_AT_ONCE = [acked(25_100, 100, about("25000", 1)), acked(25_900, 100, about("25000", 1), seq=1)]
"""One delivery, acknowledged twice."""

FROM_THE_FUTURE = [event("outsourced", 26_000, **about("26000", 1))]
"""All that is told of a job is an event that nobody knows yet."""

RECOVERED_ONLY = [recovered(17_100, 3_100, about("14000", 1), "17100")]
QUARANTINED = [quarantined(18_100, 3_100, about("15000", 2))]
"""Jobs that are not settled yet."""

UNOWNED = [recovered(22_500, -1, about("19000", 1), "22500"), acked(22_700, 100, about("19000", 2, "22500"))]
"""Nobody owned it, so it was due at once."""

LOST = [event("lost_payload", 23_000, "20000-0", entry="20000-0", delivery=1, generation=0, enqueued_ms=0, token=1)]

FENCED = [event("fenced", 24_000, verb="recover", token=3, lease="r2.ab@1500")]

STORIES = (
    PLAIN, CRASH, SLOW, LATE, CUT_OFF, CUT_OFF_AND_SLOW, LATE_BUT_FIRST, EARLY, FAILS, WAITS, LEAVES, POISON, COMPANY,
    REDRIVEN, TWICE, TWICE_AT_ONCE, FROM_THE_FUTURE, RECOVERED_ONLY, QUARANTINED, UNOWNED,
    LOST, FENCED,
)  # fmt: skip
ALL = [row for story in STORIES for row in story]
