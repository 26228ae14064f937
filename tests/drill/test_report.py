"""The ledger as people and machines read it."""

import json
from dataclasses import replace

from reaper.drill.executions import Cause, Duplicate, SecondStart
from reaper.drill.figures import Spread
from reaper.drill.ledger import Ledger, Loss
from reaper.drill.promises import Fate
from reaper.drill.records import InjectedFault
from reaper.drill.recoveries import RECOVERIES
from reaper.drill.report import as_json, as_text

LEDGER = Ledger(
    enqueued=3,
    fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 2, Fate.DEAD_LETTERED: 1},
    poison=1,
    second_starts=(SecondStart(1, "1-0", 2, Cause.WORKER_KILLED, "w2-1", "w1-1", 1.25),),
    duplicates=(Duplicate(1, "1-0", 2, Cause.WORKER_KILLED),),
    recovered=1,
    recovery_s=Spread(1.25, 1.25, 1.25),
    writes_fenced=1,
    faults=(InjectedFault("kill-holder", "r1-1", 104.0, "r1-1-9.aa"),),
)

TABLE = """\
  enqueued                  3
  settled                   2
  dead-lettered             1   (poison jobs put in: 1)
  stuck                     0
  lost                      0
  recovered                 1
  second starts             1   (worker_killed 1)
  duplicates                1   (worker_killed 1)
  fault to second start     p50 1.250 s, p99 1.250 s, max 1.250 s
  past visibility timeout   -
  early recoveries          0
  writes fenced             1
  balanced                  yes"""


def test_the_table_holds_every_figure() -> None:
    assert as_text(LEDGER, recovery=RECOVERIES["reaper"]) == TABLE


def test_without_reapers_the_table_holds_what_became_of_the_jobs() -> None:
    stuck = Ledger(enqueued=3, fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 1, Fate.PENDING: 2})
    assert as_text(stuck, recovery=RECOVERIES["none"]).splitlines() == [
        "  enqueued                  3",
        "  settled                   1",
        "  dead-lettered             0   (poison jobs put in: 0)",
        "  stuck                     2   (held by workers that are dead)",
        "  lost                      0",
        "  balanced                  NO",
    ]


LOST = Ledger(
    enqueued=3,
    fates=dict.fromkeys(Fate, 0) | {Fate.SETTLED: 1, Fate.LOST: 2},
    poison=1,
    losses=(
        Loss(1, "1-0", starts=3, poison=False),
        Loss(3, "3-0", starts=3, poison=True),
    ),
)


def test_the_table_tells_which_losses_redis_has_caused() -> None:
    forgotten = replace(LOST, losses=tuple(replace(loss, forgotten=True) for loss in LOST.losses))
    lines = as_text(forgotten, recovery=RECOVERIES["reaper"]).splitlines()
    assert lines[4] == "  lost                      2   (forgotten by Redis because of a fault: 2)"


def test_the_report_for_machines_counts_seconds_from_the_start() -> None:
    report = json.loads(json.dumps(as_json(LEDGER, started_at=100.0, objections=["something"])))
    assert report["faults"] == [
        {"kind": "kill-holder", "target": "r1-1", "time": 4.0, "until": None, "in_flight": 0, "jobs": []}
    ]
    assert report["second_starts"] == [
        {
            "n": 1, "job": "1-0", "start": 2, "cause": "worker_killed", "worker": "w2-1", "previous_worker": "w1-1",
            "recovery_s": 1.25,
        }
    ]  # fmt: skip
    assert report["duplicates"] == [{"n": 1, "job": "1-0", "times": 2, "cause": "worker_killed"}]
    assert (report["balanced"], report["objections"]) == (True, ["something"])
    assert [report[name] for name in ("enqueued", "settled", "dead_lettered", "lost")] == [3, 2, 1, 0]
    assert report["overshoot_s"] == {"p50": None, "p99": None, "max": None}
