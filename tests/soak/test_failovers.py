"""Drills where replicas are promoted: all servers real, and the ledger honest about what Redis lost."""

from pathlib import Path

import pytest

from tests.drill.playing import EITHER, timeouts, with_faults
from tests.soak.playing import played
from tests.support.processes import Processes

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.matrix]


async def test_a_master_whose_replicas_are_behind_takes_jobs_along_and_the_ledger_knows_which(
    processes: Processes, tmp_path: Path
) -> None:
    faults = with_faults("kill-master:behind@1", "long-jobs:150@1.5+1")
    options = ("--topology", "sentinel", "--limit", "200", "--recovery", "embedded", *faults)
    told = await played(processes, tmp_path, *timeouts(), *options)
    assert (told["settings"]["topology"], told["missed_faults"]) == ("sentinel", [])
    (failover,) = [fault for fault in told["faults"] if fault["kind"] == "kill-master"]
    assert failover["jobs"], "nothing of the last second was lost"
    # Jobs of live workers that Redis has lost may all be executed again.
    assert told["lost"] == told["forgotten"]
    assert {loss["n"] for loss in told["losses"]} <= set(failover["jobs"])
    assert all(loss["forgotten"] for loss in told["losses"])
    assert told["settled"] == 350 - told["lost"]


@pytest.mark.parametrize("recovery", EITHER)
@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
async def test_failovers_one_after_the_other(
    processes: Processes, tmp_path: Path, topology: str, recovery: str
) -> None:
    moves = ["move-slot@10+1"] if topology == "cluster" else []
    faults = ["kill-worker@0.5", "kill-master@1", *moves, "pause-master@12+1", "poison@30"]
    options = ("--topology", topology, "--recovery", recovery, "--limit", "800", *with_faults(*faults))
    told = await played(processes, tmp_path, *timeouts(), *options)
    assert {fault["kind"] for fault in told["faults"]} == {fault.partition("@")[0] for fault in faults}
    assert (told["settled"] + told["forgotten"], told["dead_lettered"], told["missed_faults"]) == (800, 1, [])
