"""A user's project under ``mypy --strict``: both faces and the examples of the pages are typed, and a typo is an error.

One cache for all, and for the next run: mypy reads the libraries that we use once, and again where they have changed.
"""

import re
from pathlib import Path

import pytest

import reaper
import workers
from tests.library.examples import write_files
from tests.support.processes import ROOT, Processes

pytestmark = pytest.mark.anyio

PROGRAM = """
from datetime import timedelta
from typing import assert_type

from reaper import GroupSettings, Reaper, ReaperSettings
from reaper import UnreachableError as ReaperUnreachableError
from workers import Counts, Job, JobId, NewJob, Producer, RecoveryMode, Redelivery, Reject, Retry, UnreachableError
from workers import Report, SyncProducer, Worker, WorkerEvent, WorkerSettings

worker = Worker(
    "orders", "billing", recovery=RecoveryMode.EMBEDDED, redelivery="retry-stream", job_type_field="type", timeout=30
)
event: WorkerEvent = "rejected"


@worker.handler
async def bill(job: Job) -> None:
    assert_type(job.id, str)
    assert_type(job.fields, dict[bytes, bytes])
    assert_type(job.deliveries, int)
    assert_type(job.timeout, timedelta | None)
    assert_type(await job.extend(), bool)
    raise Retry("later", delay=timedelta(minutes=1)) from Reject("no")


@worker.handler("mail", "sms")
def send(job: Job) -> None:
    assert_type(job.text("to"), str)
    assert_type(job.text("to", None), str | None)
    payload: dict[str, int] = job.json("payload", default={})
    SyncProducer("orders", "redis://127.0.0.1:6379/0").enqueue(payload, delay=timedelta(days=1))


@worker.on(event)
async def note(report: Report) -> None:
    assert_type(report.name, str)


async def serve() -> None:
    settings = ReaperSettings(groups=(GroupSettings(stream="orders", group="billing"),))
    assert_type(settings.visibility_timeout, timedelta)
    assert_type(WorkerSettings(stream="orders", group="billing").redis_url, str)
    assert ReaperUnreachableError is UnreachableError
    ReaperSettings(groups="orders/billing,orders/audit", visibility_timeout=30, journal=False)
    ReaperSettings(groups=["orders/billing"], redelivery=Redelivery.STREAM, lease_ttl=timedelta(10))
    GroupSettings(stream="orders", group="billing", visibility_timeout=0.5, redelivery="stream")
    WorkerSettings(stream="orders", group="billing", visibility_timeout=30, recovery="embedded", backoff_base=0.5)
    WorkerSettings(timeout=None)  # the rest is in the environment
    async with Reaper(settings) as replica, Producer("orders", "redis://127.0.0.1:6379/0") as orders:
        assert_type(replica, Reaper)
        assert_type(replica.held, int)
        assert_type(await orders.enqueue({"order": 17, "customer": "Ada"}, delay=1.5), JobId)
        assert_type(await orders.enqueue_many([NewJob({"order": 18})]), list[JobId])
        await worker.run()
        assert_type(worker.counts, Counts)
        assert_type(worker.settings, WorkerSettings)


bill.cancel()  # E: attr-defined
send.cancel()  # E: attr-defined
worker.handler(7)  # E: call-overload
worker.handler("mail", send)  # E: call-overload
Worker(settings={})  # E: arg-type
worker.on("recoverd")  # E: arg-type
Reaper("redis://127.0.0.1:6379/0")  # E: arg-type
from workers import Wroker  # E: attr-defined
from reaper import GroupSetting  # E: attr-defined
"""

FACES: dict[str, list[str]] = {face.__name__: vars(face)["__all__"] for face in (workers, reaper)}
NAMES = "\n".join(
    f"import {face}\n" + "\n".join(f"reveal_type({face}.{name})" for name in names) for face, names in FACES.items()
)


CACHE = ROOT / ".mypy_cache" / "users"
"""Where mypy keeps what it knows of other people's modules, by its own version and the contents of their files."""


async def test_users_programs_and_all_public_names_are_typed(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "public.py").write_text(NAMES, encoding="utf-8")
    names = [name for page in ("library.md", "testing.md", "producers.md") for name in write_files(page, tmp_path)]
    files = [str(tmp_path / name) for name in ("program.py", "public.py", *names)]
    options = ["--strict", "--config-file", "", "--cache-dir", str(CACHE), "--no-error-summary"]
    mypy = processes.python("-m", "mypy", *options, *files)
    await mypy.wait()

    said = re.findall(r"(\w+\.py):(\d+): (error|note): (.*)$", mypy.output, re.MULTILINE)
    errors = [(file, int(line), text[text.rindex("[") :]) for file, line, kind, text in said if kind == "error"]
    assert errors == [
        ("program.py", number, f"[{line.rpartition('# E: ')[2]}]")
        for number, line in enumerate(PROGRAM.splitlines(), start=1)
        if "# E: " in line
    ]
    revealed = [text.partition('Revealed type is "')[2] for _, _, _, text in said if "Revealed type" in text]
    assert len(revealed) == sum(map(len, FACES.values()))
    assert [kind for kind in revealed if kind.startswith(("Any", "builtins.object"))] == []
