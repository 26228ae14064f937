"""A third party on the same Redis. It sends PING every millisecond until SIGTERM, and prints how long each one took.

``python -m tests.benchmarks.bystander PORT`` prints ``[[sent at, in ms since the epoch, milliseconds], …]`` as JSON.
A bare socket, so that what is measured is the server and not a client library. While a reply is late no further PING is
sent; those that would have been are added, each with what it would have waited (`with_unsent`).
"""

import json
import signal
import socket
import sys
import time
from collections.abc import Iterable

EVERY_MS = 1.0

Sample = tuple[float, float]


def with_unsent(samples: Iterable[Sample]) -> list[Sample]:
    """Add the samples that were never sent while one was late: one for each millisecond it took."""
    return [
        (sent_at + late * EVERY_MS, took - late * EVERY_MS)
        for sent_at, took in samples
        for late in range(max(1, int(took // EVERY_MS)))
    ]


def watch(port: int) -> list[Sample]:
    """Sample until SIGTERM."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    samples: list[Sample] = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("watching", flush=True)
        while not ended:
            sent_at, started = time.time() * 1000, time.perf_counter()
            connection.sendall(b"PING\r\n")
            connection.recv(64)
            samples.append((sent_at, (time.perf_counter() - started) * 1000))
            time.sleep(EVERY_MS / 1000)
    return samples


if __name__ == "__main__":
    print(json.dumps(watch(int(sys.argv[1]))))
