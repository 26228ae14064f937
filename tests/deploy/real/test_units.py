"""The units, as they are shipped, under a real systemd: they start and come back; the timer ingests."""

import re

import pytest

from tests.deploy.real.stack import denied
from tests.deploy.real.units import PYTHON, Units
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.deployed]

TIMER_S = 400.0
"""`OnBootSec`, `RandomizedDelaySec`, and Spark."""
COUNT_EVENTS = """\
from deltalake import DeltaTable

print(DeltaTable("/var/lib/stream-reaper/lake/events").count())
"""
STANDS = """\
import asyncio
import logging

from workers import Job, Worker

logger = logging.getLogger("shop")
worker = Worker("orders", "billing", concurrency=16)


@worker.handler
async def bill(job: Job) -> None:
    if job.deliveries == 1 and job.fields.get(b"first") == b"stands":
        logger.info("stands with %s", job.id)
        await asyncio.sleep(10**6)
    logger.info("billed %s, delivery %d", job.id, job.deliveries)
"""
"""A worker's program: the first delivery of some jobs never ends."""


async def test_units_start(units: Units) -> None:
    """systemd: the units start hardened, with credentials and a user of their own."""
    for unit in ("reaper@orders", "worker@1", "worker@2"):
        await units.is_active(unit)
        assert units.shown(unit, "NRestarts") == "0"
    await units.logs("reaper@orders", "lease taken")
    await units.logs("worker@1", "worker started")
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", units.run("systemd-analyze", "security", "reaper@orders"))
    assert exposure
    assert float(exposure[1]) <= 2.0


async def test_jobs_are_done(units: Units) -> None:
    """Jobs are enqueued with the producer's rights, and done by both workers' units; Redis denied nobody anything."""
    jobs = [units.enqueue(amount="1") for _ in range(20)]

    def done() -> bool:
        log = units.log("worker@*")
        return all(f"billed {job}, delivery 1" in log for job in jobs)

    await wait_until(done, "every job is billed")
    assert denied(units.redis("ACL", "LOG")) == []


async def test_the_replica_is_killed(units: Units) -> None:
    """The only replica is killed: systemd starts it again, and it takes its groups again."""
    units.run("systemctl", "kill", "--signal=KILL", "reaper@orders")
    await wait_until(lambda: units.shown("reaper@orders", "NRestarts") == "1", "it is started again")
    await wait_until(lambda: units.log("reaper@orders").count("lease taken") == 2, "it works again")


async def test_a_worker_is_killed_and_its_next_process_does_its_jobs(units: Units) -> None:
    """A worker is killed with a job in its hands: its next process, of the same name, does it at once."""
    units.write("/srv/jobs/shop.py", STANDS)
    units.run("systemctl", "stop", "worker@2")
    units.run("systemctl", "restart", "worker@1")
    job = units.enqueue(first="stands")
    await units.logs("worker@1", f"stands with {job}")
    units.run("systemctl", "kill", "--signal=KILL", "worker@1")
    await units.logs("worker@1", f"billed {job}, delivery 2")
    assert units.shown("worker@1", "NRestarts") == "1"


async def test_the_timer_has_the_pipeline_ingest(units: Units) -> None:
    """The ingest timer: it starts the service within its time, which brings journals into the lake and ends well."""
    units.run("systemctl", "start", "reaper-ingest.timer")

    def ran() -> bool:
        return units.shown("reaper-ingest.service", "InactiveEnterTimestamp") != ""

    await wait_until(
        ran, "the service has run", TIMER_S, progress=lambda: units.shown("reaper-ingest.service", "ActiveState")
    )
    result = [units.shown("reaper-ingest.service", name) for name in ("Result", "ExecMainStatus")]
    assert result == ["success", "0"], units.log("reaper-ingest.service")
    assert units.shown("reaper-ingest.timer", "LastTriggerUSec") != ""
    assert int(units.run(PYTHON, "-c", COUNT_EVENTS)) > 0


async def test_units_stop_in_time(units: Units) -> None:
    """`systemctl stop`: everything ends by itself, with success."""
    names = ("reaper@orders", "worker@1")
    units.run("systemctl", "stop", *names)
    assert [units.shown(name, "Result") for name in names] == ["success", "success"]
    assert [units.shown(name, "ExecMainStatus") for name in names] == ["0", "0"]
