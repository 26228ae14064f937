"""Takes the picture of the status page for the documentation: ``python -m tests.web.picture``.

Nothing is staged but the accidents: real replicas and workers, of which one each is killed, and a page in a browser.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from redis.asyncio import Redis

from tests.support.browser import started_browser
from tests.support.processes import ROOT, Processes
from tests.support.servers import RedisServer, free_port, started_server
from tests.support.waiting import wait_until
from workers.protocol.calls.group_moves import look_at_group
from workers.protocol.connection import commands_client
from workers.protocol.events import EventName, events_of
from workers.protocol.keys import group_keys

FILE = ROOT / "docs/images/status-page.png"
KEYS = group_keys("orders", "billing")
WIDTH, HEIGHT = 1280, 1190
JOBS = 40
DONE_S = 30.0


async def _enqueue(client: Redis, first: int) -> None:
    for number in range(first, first + JOBS):
        card = {5: "expired", 11: "expired", 17: "unknown"}.get(number % 40, "valid")
        await client.xadd(KEYS.stream, {"reaper.job": f"order-{4700 + number}", "card": card})


async def _play(server: RedisServer, processes: Processes, port: int) -> str:
    """Let it happen; return a job that was recovered."""
    replica = ("--redis-url", server.url, "--groups", KEYS.name, "--visibility-timeout", "3", "--lease-ttl", "2")
    first = processes.reaper(*replica, "--name", "reaper-a")
    await first.prints("lease taken")
    second = processes.reaper(*replica, "--name", "reaper-b", "--health-port", str(port))
    client = commands_client(server.url)
    start = partial(processes.worker, "tests.web.shop:worker", "--redis-url", server.url, "--backoff-base", "0.2")
    doomed, _ = start("--name", "shop-1"), start("--name", "shop-2")
    await doomed.prints("worker started")
    for number, victim in enumerate((doomed, start("--name", "shop-3"))):
        await victim.prints("worker started")
        await _enqueue(client, 1 + number * JOBS)
        await wait_until(partial(_has_jobs, client, f"shop-{2 * number + 1}"), "it is in the middle of some jobs")
        victim.kill()
        await wait_until(partial(_all_settled, client), "what it held is done by others", DONE_S)
    first.kill()
    await second.prints("lease taken")
    another = processes.reaper(*replica, "--name", "reaper-c")
    start("--name", "shop-4")
    await _enqueue(client, 81)
    await wait_until(partial(_all_settled, client), "the last jobs are done", DONE_S)
    assert another.running
    rows: Any = await client.xrange(KEYS.journal, "-", "+")
    jobs = [event.job for row in rows for event in events_of(row[0], row[1], (EventName.RECOVERED,))]
    await client.aclose()
    return jobs[-1]


async def _has_jobs(client: Redis, worker: str) -> bool:
    rows: Any = await client.xpending_range(KEYS.stream, KEYS.group, "-", "+", 100)
    return any(consumer.decode().startswith(f"{worker}~") for _, consumer, *_ in rows)


async def _all_settled(client: Redis) -> bool:
    """Tell whether no job is ready, pending, quarantined, or waits to be tried again."""
    sight = await look_at_group(client, KEYS)
    return not any((sight.in_flight, sight.oldest_ready_ms, sight.scheduled, sight.quarantined))


def _take(port: int, job: str) -> None:
    with started_browser() as browser:
        browser.set_window_size(WIDTH, HEIGHT)
        browser.get(f"http://127.0.0.1:{port}/")
        browser.implicitly_wait(20)
        browser.find_element("css selector", "#group-table td")
        browser.find_element("id", "job").send_keys(job + "\n")
        browser.find_element("css selector", "ol.timeline li")
        browser.execute_script("document.activeElement.blur()")
        FILE.parent.mkdir(exist_ok=True)
        browser.save_screenshot(str(FILE))


async def main() -> None:
    """Play, and take the picture."""
    with tempfile.TemporaryDirectory(prefix="stream-reaper-picture-") as folder, started_server() as server:
        processes = Processes(Path(folder))
        try:
            port = free_port()
            job = await _play(server, processes, port)
            await to_thread.run_sync(_take, port, job)
        finally:
            processes.end()


if __name__ == "__main__":
    anyio.run(main)
