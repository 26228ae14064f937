"""Ports that no other test run or server on this machine gets.

A server that a test has stopped, or an address where nobody shall answer, would be lost to the next one that asks the
system for a free port, such as a server of another process of ``make test``.
"""

import atexit
import socket
import sys
from collections import deque

_MOST = 1_000
"""More than the ports that one test asks for, and fewer than the files that a process may have open."""
_held: deque[socket.socket] = deque()


def free_port() -> int:
    """Return a TCP port of the loopback interface where nobody listens, and nobody will who is not told of it.

    It stays bound, which on Linux keeps nobody who names it from listening there (servers set SO_REUSEADDR).
    """
    holder = socket.socket()
    if sys.platform == "linux":
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port: int = holder.getsockname()[1]
    if sys.platform == "linux":
        _held.append(holder)
        if len(_held) > _MOST:
            _held.popleft().close()
    else:
        holder.close()
    return port


@atexit.register
def _let_go() -> None:
    for holder in _held:
        holder.close()
