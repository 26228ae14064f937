"""Drills where replicas are promoted: all servers real, and the ledger honest about what Redis lost."""

from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError, TryAgainError

from tests.drill.playing import read, timeouts, with_faults
from tests.soak.patient import PatientClient
from tests.support.processes import Processes
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client
from workers.protocol.meaning import NoMasterError

pytestmark = pytest.mark.anyio


async def _played(processes: Processes, report: Path, *options: str) -> dict[str, Any]:
    drill = processes.python("-m", "tests.soak", *timeouts(), *options, "--output", str(report), name="drill")
    assert await drill.wait() == 0, drill.output
    told: dict[str, Any] = read(report)
    assert (told["balanced"], told["objections"], told["missed_faults"]) == (True, [], [])
    assert told["redis_requests"] is None
    return told


@pytest.mark.processes
@pytest.mark.matrix
async def test_a_master_whose_replicas_are_behind_takes_jobs_along_and_the_ledger_knows_which(
    processes: Processes, tmp_path: Path
) -> None:
    faults = with_faults("kill-master:behind@1", "long-jobs:150@1.5+1")
    options = ("--topology", "sentinel", "--limit", "200", "--recovery", "embedded", *faults)
    told = await _played(processes, tmp_path / "report.json", *options)
    assert told["settings"]["topology"] == "sentinel"
    (failover,) = [fault for fault in told["faults"] if fault["kind"] == "kill-master"]
    assert failover["jobs"], "nothing of the last second was lost"
    # Jobs of live workers that Redis has lost may all be executed again.
    assert told["lost"] == told["forgotten"]
    assert {loss["n"] for loss in told["losses"]} <= set(failover["jobs"])
    assert all(loss["forgotten"] for loss in told["losses"])
    assert told["settled"] == 350 - told["lost"]


@pytest.mark.matrix
@pytest.mark.processes
@pytest.mark.parametrize("recovery", ["reaper", "embedded"])
@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
async def test_failovers_one_after_the_other(
    processes: Processes, tmp_path: Path, topology: str, recovery: str
) -> None:
    moves = ["move-slot@10+1"] if topology == "cluster" else []
    faults = ["kill-worker@0.5", "kill-master@1", *moves, "pause-master@12+1", "poison@30"]
    options = ("--topology", topology, "--recovery", recovery, "--limit", "800", *with_faults(*faults))
    told = await _played(processes, tmp_path / "report.json", *options)
    assert {fault["kind"] for fault in told["faults"]} == {fault.partition("@")[0] for fault in faults}
    assert told["settled"] + told["forgotten"] == 800
    assert told["dead_lettered"] == 1


# ---- the drill's own client


class _Faulty:
    """Fails with each of the errors in turn, and then does what it is asked to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


LOST = RedisConnectionError("lost")
REFUSED = TryAgainError("TRYAGAIN later")


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("error", [LOST, REFUSED, NoMasterError("nobody")])
async def test_a_patient_client_asks_again_and_adds_only_what_was_not_added(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, error: Exception, transaction: bool
) -> None:
    client = PatientClient(commands_client(server.url))
    get: Any = client.connection_pool.get_connection
    faulty = _Faulty()

    async def get_connection(*words: Any, **options: Any) -> Any:
        faulty.fail()
        return await get(*words, **options)

    monkeypatch.setattr(client.connection_pool, "get_connection", get_connection)

    async def add_alone() -> None:
        await client.execute_command("XADD", "jobs", "*", "n", "1")

    async def add_in_pipeline() -> None:
        pipeline: Any = client.pipeline(transaction=transaction)
        pipeline.execute_command("XADD", "jobs", "*", "n", "1")
        await pipeline.execute()

    async with client:
        faulty.errors = [error, error]
        assert await client.exists("jobs") == 0
        pipeline: Any = client.pipeline(transaction=transaction)
        pipeline.set("a", "1")
        pipeline.get("a")
        faulty.errors = [error]
        assert (await pipeline.execute())[1] == b"1"
        for added, add in enumerate([add_alone, add_in_pipeline]):
            faulty.errors = [error]
            if error is LOST:  # it may have been added
                with pytest.raises(RedisConnectionError, match="lost"):
                    await add()
            else:
                await add()
            assert await client.xlen("jobs") == (0 if error is LOST else added + 1)


async def test_what_redis_objects_to_is_not_asked_again(server: RedisServer) -> None:
    async with PatientClient(commands_client(server.url)) as client:
        await client.set("a", "1")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await client.xlen("a")
