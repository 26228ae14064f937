"""A producer that adds one job at a time in a fixed rhythm, over a bare socket, so that no client library is measured.

``python -m tests.benchmarks.pacer PORT STREAM JOBS PER_SECOND``. Each job says when it was sent.
"""

import random
import socket
import sys
import time

from tests.benchmarks.bare import FIELD_SENT

JITTER = 0.5
"""So much of the interval is left to chance, so that nothing keeps time with it."""


def produce(port: int, stream: str, jobs: int, per_second: float) -> None:
    """Add jobs, and wait for each reply."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(jobs):
            time.sleep((1 + random.uniform(-JITTER, JITTER)) / per_second)
            connection.sendall(_packed("XADD", stream, "*", FIELD_SENT.decode(), repr(time.time())))
            if not connection.recv(64).startswith(b"$"):
                raise RuntimeError("XADD failed")


def _packed(*words: str) -> bytes:
    return "".join([f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]).encode()


if __name__ == "__main__":
    produce(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
