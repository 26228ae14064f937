"""Visibility timers against a naive model, their update rule, and the memory of a million of them."""

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reaper.recovery.timers import BUCKET_MS, TOLERANCE_MS, Timers
from tests.support.processes import ROOT

ids = st.integers(0, 9).map(lambda number: b"170000000000%d-0" % number)
# Few of them, so that timers meet in one bucket; around the tolerance; and any.
instants = st.sampled_from([500, 1_000, 1_005, 1_050, 1_055, 1_500]) | st.integers(0, 2_000)
EVERYTHING = 1_000_000


class TimersMatchTheModel(RuleBasedStateMachine):
    """The model: when each timer is due, and which were not armed again since the sweep began."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = Timers()
        self.due: dict[bytes, int] = {}
        self.unseen: set[bytes] = set()

    @rule(entry_id=ids, due_ms=instants)
    def arm(self, entry_id: bytes, due_ms: int) -> None:
        self.timers.arm(entry_id, due_ms)
        rounded = -(-due_ms // BUCKET_MS) * BUCKET_MS
        if abs(self.due.get(entry_id, EVERYTHING) - rounded) > TOLERANCE_MS:
            self.due[entry_id] = rounded
        self.unseen.discard(entry_id)

    @rule(entry_id=ids)
    def disarm(self, entry_id: bytes) -> None:
        self.timers.disarm(entry_id)
        self._forget([entry_id])

    @rule(now_ms=instants, limit=st.integers(1, 20))
    def pop_due(self, now_ms: int, limit: int) -> None:
        popped = self.timers.pop_due(now_ms, limit)
        due = sorted(instant for instant in self.due.values() if instant <= now_ms)
        assert len(set(popped)) == len(popped)
        assert [self.due[entry_id] for entry_id in popped] == due[:limit]  # the earliest, in order
        self._forget(popped)

    @rule()
    def begin_sweep(self) -> None:
        self.timers.begin_sweep()
        self.unseen = set(self.due)

    @rule(limit=st.integers(1, 8))
    def sweep(self, limit: int) -> None:
        complete = self.timers.sweep(limit) is None
        swept = {entry_id for entry_id in self.due if entry_id not in self.timers}
        assert swept <= self.unseen
        assert not complete or swept == self.unseen
        self._forget(swept)

    def _forget(self, entry_ids: Iterable[bytes]) -> None:
        for entry_id in entry_ids:
            self.due.pop(entry_id, None)
            self.unseen.discard(entry_id)

    @invariant()
    def knows_the_same_timers(self) -> None:
        assert (len(self.timers), set(self.timers._by_id)) == (len(self.due), set(self.due))

    @invariant()
    def the_next_is_the_earliest(self) -> None:
        assert self.timers.next_due() == min(self.due.values(), default=None)

    def teardown(self) -> None:
        """Each timer fires once, in order, after any history."""
        popped = self.timers.pop_due(EVERYTHING, EVERYTHING)
        assert [self.due[entry_id] for entry_id in popped] == sorted(self.due.values())
        assert (len(self.timers), self.timers.next_due()) == (0, None)


TestTimersMatchTheModel: Any = TimersMatchTheModel.TestCase
TestTimersMatchTheModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(instants, min_size=1))
def test_a_timer_fires_within_the_tolerance_of_the_last_instant_it_was_armed_for(dues: list[int]) -> None:
    timers = Timers()
    for due_ms in dues:
        timers.arm(b"1-0", due_ms)
    next_due = timers.next_due()
    assert next_due is not None
    assert -TOLERANCE_MS <= next_due - dues[-1] < TOLERANCE_MS + BUCKET_MS


def test_scans_that_find_the_same_again_leave_nothing_behind() -> None:
    timers = Timers()
    for _ in range(20):
        timers.begin_sweep()
        for number in range(100):
            timers.arm(b"%d-0" % number, 3_600_000 + 100 * number)
        while timers.sweep() is not None:
            pass
    assert sum(len(bucket.ids) for bucket in timers._heap) == len(timers) == 100
    assert len(timers._heap) == 100


def test_a_sweep_tells_what_it_forgets_and_nothing_of_what_was_seen_again_or_had_fired() -> None:
    timers = Timers()
    for entry_id, due_ms in ((b"again", 1_000), (b"gone", 1_000), (b"fired", 500)):
        timers.arm(entry_id, due_ms)
    timers.pop_due(500, 1)
    timers.begin_sweep()
    timers.arm(b"again", 1_000)
    assert (timers.sweep(), timers.sweep(), list(timers._by_id)) == ([b"gone"], None, [b"again"])


def test_a_timer_that_is_kept_stands_and_survives_the_sweep() -> None:
    timers = Timers()
    timers.arm(b"1-0", 1_000)
    timers.arm(b"2-0", 2_000)
    timers.begin_sweep()
    assert [timers.keep(entry_id) for entry_id in (b"1-0", b"2-0", b"3-0")] == [True, True, False]
    assert timers.sweep() == []
    assert (timers.next_due(), b"1-0" in timers, b"3-0" in timers, len(timers)) == (1_000, True, False, 2)


_MILLION = """
from pathlib import Path
from reaper.recovery.timers import Timers

def peak_bytes():
    # Not ru_maxrss: that starts from the peak of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

def scan():
    timers.begin_sweep()
    for number in range(1_000_000):
        timers.arm(b"%d-0" % (1_700_000_000_000 + number), 30 * number // 1_000)
    while timers.sweep() is not None:
        pass

timers = Timers()
before = peak_bytes()
scan()
armed = peak_bytes()
scan()
print(len(timers), armed - before, peak_bytes() - before)
"""


def test_a_million_timers_stay_below_250_mb_also_while_a_second_scan_replaces_them() -> None:
    argv = [sys.executable, "-c", _MILLION]
    printed = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout
    timers, armed, scanned_again = map(int, printed.split())
    assert timers == 1_000_000
    assert 0 < armed <= scanned_again < 250_000_000
