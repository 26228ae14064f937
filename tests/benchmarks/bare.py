"""The bare loops of the benchmarks, which do the same job with the least code and plain redis-py.

They run as processes, by ``python -m tests.benchmarks.bare COMMAND URL …``. The last line of output is the result as
JSON.
"""

import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import redis

from tests.benchmarks.usage import peak_mb

FIELD_SENT = b"sent"

READ_COUNT = 100
CLAIM_COUNT = 100
CLAIM_EVERY_S = 1.0
CLAIM_AGAIN_S = 0.05

RECOVER = """
for i = 2, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  redis.call('XADD', KEYS[1], '*', unpack(entry[2]))
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  redis.call('XDEL', KEYS[1], ARGV[i])
end
"""


def read(client: redis.Redis, stream: str, group: str, consumer: str) -> None:
    """Read and acknowledge until killed."""
    while True:
        reply: Any = client.xreadgroup(group, consumer, {stream: ">"}, count=READ_COUNT, block=1000)
        for _, entries in reply:
            client.xack(stream, group, *(entry_id for entry_id, _ in entries))


def read_pipelined(client: redis.Redis, stream: str, group: str, consumer: str, count: str) -> None:
    """Acknowledge what was read and read ``count`` more in one round trip, until killed."""
    done: list[Any] = []
    while True:
        pipeline = client.pipeline(transaction=False)
        if done:
            pipeline.xack(stream, group, *done)
        pipeline.xreadgroup(group, consumer, {stream: ">"}, count=int(count), block=None if done else 1000)
        reply: Any = pipeline.execute()[-1]
        done = [entry_id for _, entries in reply for entry_id, _ in entries]


def read_timed(client: redis.Redis, stream: str, group: str, consumer: str) -> list[float]:
    """Do the same until SIGTERM. Return the time in ms from the sending of each job to its arrival."""
    late_ms: list[float] = []
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    while not ended:
        reply: Any = client.xreadgroup(group, consumer, {stream: ">"}, count=READ_COUNT, block=1000)
        for _, entries in reply:
            now = time.time()
            late_ms += [(now - float(fields[FIELD_SENT])) * 1000 for _, fields in entries]
            client.xack(stream, group, *(entry_id for entry_id, _ in entries))
    return late_ms


def claim_and_settle(client: redis.Redis, stream: str, group: str, idle_ms: str, expected: str) -> dict[str, float]:
    """Claim and acknowledge ``expected`` entries once they are overdue. Return the time from the first to the last."""
    cursor: Any = "0-0"
    done, first = 0, 0.0
    while done < int(expected):
        cursor, entries, *_ = client.xautoclaim(stream, group, "claimer", int(idle_ms), cursor, CLAIM_COUNT)
        if entries:
            client.xack(stream, group, *(entry_id for entry_id, _ in entries))
            first = first or time.perf_counter()
            done += len(entries)
        elif cursor == b"0-0":
            time.sleep(CLAIM_AGAIN_S)
    return {"entries": done, "seconds": time.perf_counter() - first}


def scan(client: redis.Redis, stream: str, group: str, page: str) -> dict[str, float]:
    """Page through the pending entries list once, and keep no entry."""
    started, lowest, entries = time.perf_counter(), "-", 0
    while True:
        rows: Any = client.xpending_range(stream, group, min=lowest, max="+", count=int(page))
        entries += len(rows)
        if len(rows) < int(page):
            seconds = time.perf_counter() - started
            return {"entries": entries, "seconds": seconds, "peak_mb": peak_mb("self")}
        lowest = "(" + rows[-1]["message_id"].decode()


def recover(client: redis.Redis, stream: str, group: str, batch: str) -> dict[str, float]:
    """Copy every pending entry to the tail and remove it. The IDs are known before the clock starts."""
    rows = client.xpending_range(stream, group, min="-", max="+", count=10_000_000)
    ids, size = [row["message_id"] for row in rows], int(batch)
    script = client.register_script(RECOVER)
    script(keys=[stream], args=[group])  # loads it
    used, own = _server_us(client), time.process_time()
    started_at, started = time.time(), time.perf_counter()
    for first in range(0, len(ids), size):
        script(keys=[stream], args=[group, *ids[first : first + size]])
    seconds = time.perf_counter() - started
    used, own = _server_us(client) - used, (time.process_time() - own) * 1_000_000
    return {
        "entries": len(ids), "seconds": seconds, "from": started_at, "to": started_at + seconds, "server_us": used,
        "client_us": own,
    }  # fmt: skip


def _server_us(client: redis.Redis) -> float:
    used: Any = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1_000_000


def claim(client: redis.Redis, stream: str, group: str, idle_ms: str, expected: str) -> dict[str, float]:
    """Claim overdue entries once a second, until ``expected`` entries were seen. Return the time of each."""
    claimed_at: dict[str, float] = {}
    while len(claimed_at) < int(expected):
        cursor: Any = "0-0"
        while True:
            cursor, entries, *_ = client.xautoclaim(stream, group, "claimer", int(idle_ms), cursor, CLAIM_COUNT)
            now_ms = time.time() * 1000
            for entry_id, _ in entries:
                claimed_at.setdefault(entry_id.decode(), now_ms)
            if cursor == b"0-0":
                break
        time.sleep(CLAIM_EVERY_S)
    return claimed_at


COMMANDS: dict[str, Callable[..., object]] = {
    "read": read,
    "read-pipelined": read_pipelined,
    "read-timed": read_timed,
    "claim-and-settle": claim_and_settle,
    "scan": scan,
    "recover": recover,
    "claim": claim,
}


def main() -> None:
    """Run one of them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    command, url, *words = sys.argv[1:]
    with redis.Redis.from_url(url) as client:
        print(json.dumps(COMMANDS[command](client, *words)))


if __name__ == "__main__":
    main()
