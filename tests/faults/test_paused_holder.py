"""A holder is paused, killed or cut off at every step of a recovery. No job is lost, and none is done twice.

A paused holder (SIGSTOP) goes on once another replica has taken the lease and has done the work. The scripts reject its
later writes. They are counted and journalled.
"""

from collections import Counter
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper import failpoints
from reaper.drill.promises import FinalState
from reaper.failpoints import arm, claimed_by
from reaper.recovery import source_watch
from tests.faults.reapers import (
    Case,
    claimed,
    holding,
    nothing_left,
    quick_settings,
    replica_of,
    start_replica,
)
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.protocol.events import EventName

pytestmark = pytest.mark.anyio

WRITES = ("recover.before_write", "schedule.before_write")
"""Where a holder that goes on writes at once."""
STEPS = (
    "lease.before_take",
    "lease.after_take",
    "tick.before",
    "scan.before_page",
    "recover.before_write",
    "recover.after_write",
    "schedule.before_write",
)
AFTER_TAKING = STEPS[1:]


class Stalled:
    """Jobs of every kind that a recovery meets. They are redelivered, quarantined, or dead-lettered."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.redelivered: list[str] = []
        self.quarantined: list[str] = []
        self.poison: list[str] = []

    async def prepare(self) -> None:
        """Let the jobs stall."""
        self.redelivered = await self.case.stalled(30, times=1, consumer="w1")
        self.quarantined = await self.case.stalled(3, times=2, consumer="w2")
        self.poison = await self.case.doomed(2)

    def is_recovered(self, state: FinalState) -> bool:
        """Return whether all stalled jobs were recovered. Quarantined jobs are released one at a time."""
        return not state.pending and len(state.dead) == len(self.poison) and state.released == 1

    async def finish(self) -> None:
        """Run the ready jobs until none is left, and check all of them."""
        executed = await self.case.work_off(nothing_left)
        assert Counter(executed) == Counter([*self.redelivered, *self.quarantined])
        assert sorted(letter.job for letter in (await self.case.state()).dead) == self.poison
        assert await self.case.violations(finished=True, poison=frozenset(self.poison)) == []
        # A quarantined job is quarantined, and later released. Those are two events, each once.
        recovered = await self.case.recovered()
        once = {*self.redelivered, *self.poison}
        assert {job: len(tokens) for job, tokens in recovered.items()} == dict.fromkeys(once, 1) | dict.fromkeys(
            self.quarantined, 2
        )


@pytest.fixture
async def stalled(server: RedisServer, client: Redis) -> Stalled:
    """Overdue deliveries, before a replica watches."""
    jobs = Stalled(await Case.prepared(server, client))
    await jobs.prepare()
    return jobs


async def start_and_hit(
    processes: Processes, stalled: Stalled, folder: Path, step: str, action: str
) -> tuple[Running, str]:
    """Start the first replica, wait until it has come to ``step`` and no further, and let its lease run out.

    Return it, and its ID if it held the lease.
    """
    arm(folder, step, action)
    first = start_replica(processes, stalled.case.server, failpoints=folder)
    assert await claimed(folder, step) == first.pid
    replica = replica_of(await stalled.case.holder())
    assert bool(replica) == (step in AFTER_TAKING)
    if replica:
        await stalled.case.end_lease()
    return first, replica


@pytest.mark.parametrize("step", AFTER_TAKING)
async def test_a_holder_that_goes_on_after_another_took_the_lease_changes_nothing(
    stalled: Stalled, processes: Processes, tmp_path: Path, step: str
) -> None:
    case = stalled.case
    first, replica = await start_and_hit(processes, stalled, tmp_path, step, "stop")
    async with holding(quick_settings(case.server), before=replica) as second:

        async def recovered() -> bool:
            return stalled.is_recovered(await case.state())

        await wait_until(recovered, "the second replica has recovered what was left")
        before = await case.recovered()
        first.resume()
        await first.prints("lease left: group=orders/billing token=1 ")
        fenced = {event.data["token"] for event in await case.events(EventName.FENCED)}
        assert fenced == {1} if step in WRITES else fenced <= {1}
        assert (await case.recovered(), second.reaper.held) == (before, 1)
        await stalled.finish()
    assert first.running


@pytest.mark.parametrize("step", ["lease.before_take", "recover.after_write"])
async def test_after_a_holder_was_killed_midway_another_one_finishes(
    stalled: Stalled, processes: Processes, tmp_path: Path, step: str
) -> None:
    first, _ = await start_and_hit(processes, stalled, tmp_path, step, "kill")
    assert await first.wait() == -9
    async with holding(quick_settings(stalled.case.server)):
        await stalled.finish()


@pytest.mark.parametrize("step", ["lease.before_take", *WRITES])
async def test_a_lost_connection_before_a_write_loses_nothing(
    stalled: Stalled, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(source_watch, "RETRY_MS", 50)
    arm(tmp_path, step, "raise")
    # No full scan comes to the rescue, but for the first of a term.
    async with holding(quick_settings(stalled.case.server, full_scan_interval=3_600)):
        await wait_until(lambda: claimed_by(tmp_path, step), f"the connection is lost at {step}")
        await stalled.finish()
