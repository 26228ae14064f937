"""Makes the sample output in docs/runbook.md on a real server: `python -m tests.docs.runbook_samples`.

Each situation is caused as in production. Workers stop, an operator pauses, a third party deletes.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from redis import Redis

from tests.support.processes import ROOT, Processes, Running
from tests.support.servers import RedisServer, started_server
from tests.support.waiting import wait_until
from workers.protocol.keys import MARKER_CONSUMER

PAGE = ROOT / "docs/runbook.md"
GROUP = "orders/billing"
SHOWN_S = 40.0
APART_MS = 100
"""Least time between two full scans. Less is the error of measuring."""
SETTINGS = f'groups = "{GROUP}"\nvisibility_timeout = 5\nlease_ttl = 5\nfull_scan_interval = 1\nmax_deliveries = 3\n'
HANDLER = """
from workers import Worker
worker = Worker("orders", "billing", concurrency=1)
@worker.handler
async def handle(job):
    raise ValueError("card expired")
"""


class Scene:
    """One server with replicas and jobs, and the samples that were collected from it."""

    def __init__(self, server: RedisServer, processes: Processes, folder: Path) -> None:
        self.redis = Redis(port=server.port, decode_responses=True)
        self.samples: dict[str, str] = {}
        self.processes = processes
        self.port = server.port
        self._url = server.url
        self.folder = folder
        self._config = folder / "reaper.toml"
        self._config.write_text(SETTINGS)

    def replica(self, name: str, url: str = "", *flags: str) -> Running:
        """Start a replica."""
        to = ("--config", str(self._config), "--redis-url", url or self._url)
        return self.processes.reaper(*to, "--name", name, *flags)

    def worker(self) -> Running:
        """Start a worker whose handler always fails."""
        (self.folder / "failing.py").write_text(HANDLER)
        flags = ("--redis-url", self._url, "--backoff-base", "60", "--backoff-cap", "60")
        return self.processes.worker("failing:worker", *flags, env={"PYTHONPATH": f"{self.folder}:{ROOT}"})

    def stall(self, consumer: str, jobs: int = 1) -> list[str]:
        """Add jobs, let a consumer read all that are ready, and acknowledge none. Return the new entry IDs."""
        ids = [str(self.redis.xadd("orders", {"order": number})) for number in range(jobs)]
        self.redis.xreadgroup("billing", consumer, {"orders": ">"}, count=100, block=20_000)
        return ids

    def pending(self, entry_id: str) -> bool:
        """Return whether an entry is pending."""
        return bool(self.redis.xpending_range("orders", "billing", entry_id, entry_id, 1))

    async def run(self, command: str) -> None:
        """Run a command on the group."""
        argv = [sys.executable, "-m", "reaper", "groups", command, GROUP, "--redis-url", self._url]
        await to_thread.run_sync(partial(subprocess.run, argv, capture_output=True, check=True))

    def idle_ms(self, entry_id: str) -> int:
        """Return how long an entry has been pending without a heartbeat."""
        (row,) = self.redis.xpending_range("orders", "billing", entry_id, entry_id, 1)
        return int(row["time_since_delivered"])

    async def scanned(self) -> None:
        """Wait for two full scans, of which one began later than now. The holder makes its marker anew after each."""

        def made_ms() -> int:
            seconds, micros = self.redis.time()
            consumers = self.redis.xinfo_consumers("orders", "billing")
            idle = next((one["idle"] for one in consumers if one["name"] == MARKER_CONSUMER), None)
            return 0 if idle is None else seconds * 1000 + micros // 1000 - int(idle)

        def is_made_after(moment_ms: int) -> bool:
            return made_ms() > moment_ms + APART_MS

        for _ in range(2):
            await wait_until(partial(is_made_after, made_ms()), "the holder has scanned the group")

    def finish(self) -> None:
        """Acknowledge all jobs that are ready or pending."""
        self.redis.xreadgroup("billing", "healthy", {"orders": ">"}, count=1000)
        for one in self.redis.xpending_range("orders", "billing", "-", "+", 1000):
            self.redis.xack("orders", "billing", one["message_id"])

    async def sample(self, name: str, *command: str, shows: str, keeps: str) -> None:
        """Run a command until its output shows something, and keep the lines that matter."""
        flags = ("--config", str(self._config), "--redis-url", self._url)

        async def output() -> str:
            argv = [sys.executable, "-m", "reaper", *command, *flags]
            done = await to_thread.run_sync(partial(subprocess.run, argv, capture_output=True, text=True, check=False))
            return done.stdout if re.search(shows, done.stdout) else ""

        self.keep(
            name, ("$ reaper " + " ".join(command), *(await wait_until(output, name, SHOWN_S)).splitlines()), keeps
        )

    def keep(self, name: str, lines: Sequence[str], keeps: str) -> None:
        """Keep some lines as a sample."""
        self.samples[name] = "\n".join(line for line in lines if line.startswith("$") or re.search(keeps, line))


async def _play(scene: Scene) -> None:
    redis, degraded = scene.redis, r"^degraded|^  - "
    await _wait(scene)
    redis.xgroup_create("orders", "billing", "0", mkstream=True)
    first = scene.replica("reaper-1")
    await first.prints("lease taken")
    await scene.sample("alone", "status", shows="token 1", keeps="holds|take over")
    second = scene.replica("reaper-2")
    await scene.sample("_", "status", shows=r"(?m)2 live(.|\n)*^healthy", keeps="-")
    scene.stall("worker-1")
    everything = r"^  replicas|holds|billing|^  recovery|^  jobs|^  holder|^healthy"
    await scene.sample("healthy", "status", shows=r"(?m)pending 1 (.|\n)*^healthy", keeps=everything)
    scene.finish()
    await _operate(scene, degraded)
    await _delete(scene)
    await _crash_often(scene)
    await _deny(scene, first, second)


async def _wait(scene: Scene) -> None:
    """A group with a long visibility timeout, so that its recovery waits for long."""
    scene.redis.xgroup_create("mail", "sender", "0", mkstream=True)
    group = ("--namespace", "mailing", "--groups", "mail/sender", "--visibility-timeout", "300")
    replica = scene.replica("reaper-1", "", *group)
    await replica.prints("lease taken")
    await scene.sample("waits", "status", *group[:4], shows="recovery waits", keeps="recovery waits")
    replica.terminate()
    await replica.wait()


async def _operate(scene: Scene, degraded: str) -> None:
    (job,) = scene.stall("worker-2")
    await scene.run("pause")
    await scene.sample("paused", "status", shows="(?m)^degraded", keeps=degraded)
    await scene.sample("silent", "explain", job, shows="passed", keeps="owner|idle|next|but")
    await scene.run("resume")
    await scene.sample("jobs-wait", "status", shows=r"(?m)ready 1 (.|\n)*^degraded", keeps=rf"^  jobs|{degraded}")
    scene.finish()
    scene.redis.xgroup_create("orders", "audit", "$")
    scene.stall("worker-2")
    await scene.sample("disabled", "status", shows="(?m)^degraded", keeps=degraded)
    scene.redis.xgroup_destroy("orders", "audit")
    await scene.sample("_", "status", shows="(?m)^healthy", keeps="-")
    scene.finish()


async def _delete(scene: Scene) -> None:
    (early,) = scene.stall("worker-3")
    await wait_until(lambda: scene.idle_ms(early) > 3_500, "the first one is old, but not overdue")
    (late,) = scene.stall("worker-3")
    await wait_until(lambda: not scene.pending(early), "the earlier one is recovered")
    await scene.scanned()
    scene.redis.xack("orders", "billing", late)
    await scene.sample("false-recoveries", "status", shows="worker-3: 1", keeps="worker-3: 1")
    scene.finish()
    scene.stall("worker-4")
    await scene.scanned()
    scene.redis.xgroup_delconsumer("orders", "billing", "worker-4")
    await scene.sample(
        "lost",
        "groups",
        "requeue",
        "orders/billing",
        "--lost",
        "--dry-run",
        shows="1 delivery would be requeued",
        keeps=".",
    )


async def _crash_often(scene: Scene) -> None:
    for number in range(3):
        scene.stall(f"worker-{5 + number}", jobs=0 if number else 2)
        await wait_until(lambda: not scene.redis.xpending("orders", "billing")["pending"], "all are recovered")
        if number == 1:
            await scene.sample("quarantine", "status", shows="quarantined [1-9]|released [1-9]", keeps="^  jobs")
    listed = ("dead-letters", "list", "orders/billing")
    await scene.sample("dead-letters", *listed, shows=r"\d{13}-\d+", keeps=".")
    scene.finish()
    job, worker = str(scene.redis.xadd("orders", {"order": 17})), scene.worker()
    await scene.sample("failing", "explain", job, shows="card expired", keeps="next|failed|retr|card expired")
    worker.terminate()
    await worker.wait()


async def _deny(scene: Scene, *replicas: Running) -> None:
    for replica in replicas:
        replica.terminate()
        await replica.wait()
    scene.redis.acl_setuser("limited", enabled=True, nopass=True, keys="*", commands=["+@all", "-xpending"])
    limited = scene.replica("reaper-3", f"redis://limited:none@127.0.0.1:{scene.port}/0")
    denied = (await limited.prints(r"^.*NOPERM.*|^.*xpending.*$"))[0]
    scene.keep("denied", [denied], ".")


async def main() -> None:
    """Play all situations, and put the samples into the page."""
    with tempfile.TemporaryDirectory(prefix="stream-reaper-runbook-") as folder, started_server() as server:
        processes = Processes(Path(folder))
        try:
            scene = Scene(server, processes, Path(folder))
            await _play(scene)
        finally:
            processes.end()
    page = PAGE.read_text(encoding="utf-8")
    for name, sample in scene.samples.items():
        block = re.compile(rf"(<!-- sample: {name} -->\n```text\n).*?(^```)", re.MULTILINE | re.DOTALL)
        if found := block.search(page):
            page = page[: found.start()] + f"{found[1]}{sample}\n{found[2]}" + page[found.end() :]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    anyio.run(main)
