"""A process that a handler forks is not a second worker. It gets the signals, sockets and event loop of a new process.

A fork copies the signal handlers that stop the worker, the event loop's wakeup socket, the connections that Redis
delivers on, and the listening port. So `Process.terminate()` of a child would stop its parent. A child that outlives
the worker would keep its connections open. `workers.runtime.children` ends a child that comes back to us.

`workers.runtime.entrance` imports this module first, so it imports only fast modules.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

FORKS = [0]
"""How many forks this process is away from the one that imported this. Compared by who calls a user's function."""


_made = [0]


class _Loop(Protocol):
    def call_soon(self, callback: Callable[[], object], /) -> Any: ...


_handlers: dict[signal.Signals, Any] = {}
"""What a forked child does on signals that the worker handles."""
_sockets: "WeakSet[Any]" = WeakSet()
_ends: "WeakKeyDictionary[_Loop, Callable[[], object]]" = WeakKeyDictionary()


class _Forking(threading.local):
    mask: "set[int | signal.Signals] | None" = None
    """The signals that this thread blocked before its fork."""


_forking = _Forking()


def handles(number: signal.Signals, before: Any) -> bool:
    """Note that a forked child does not handle a signal that this process does. Return False if it was noted before."""
    if number in _handlers:
        return False
    default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    _handlers[number] = signal.SIG_IGN if before is signal.SIG_IGN else default
    return True


def handles_no_more(number: signal.Signals) -> None:
    """Undo `handles`."""
    _handlers.pop(number, None)


def keep_from_children(holder: Any) -> None:
    """Note a socket, or an asyncio transport, that no forked child may keep open. It is forgotten with its object."""
    _sockets.add(holder)


def runs_in(loop: _Loop, end: Callable[[], object]) -> None:
    """Note an event loop that a worker runs in. If a forked child returns into it, ``end`` is called there."""
    _ends[loop] = end


def forks_made() -> int:
    """Return how many children this process has forked."""
    return _made[0]


# ---- around a fork


def _before() -> None:
    """Block the worker's signals, because a child may be terminated before it has handlers of its own."""
    if _handlers:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers)


def _after_in_parent() -> None:
    _made[0] += 1
    _unblock()


def _unblock() -> None:
    mask, _forking.mask = _forking.mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_in_child() -> None:
    FORKS[0] += 1
    try:
        with suppress(ValueError):  # in a subinterpreter, which handles no signals
            signal.set_wakeup_fd(-1)
            for number, handler in _handlers.items():
                signal.signal(number, handler)
        _handlers.clear()
        _let_go_of_sockets()
        for loop, end in list(_ends.items()):
            with suppress(RuntimeError):  # closed, or one of another thread, which the child does not have
                loop.call_soon(end)
    finally:
        _unblock()


def _let_go_of_sockets() -> None:
    """Replace each socket by /dev/null, because objects of the parent still have the number and may close it."""
    null = os.open(os.devnull, os.O_RDWR)
    for holder in list(_sockets):
        with suppress(OSError):
            number = _number_of(holder)
            if number >= 0:
                os.dup2(null, number, inheritable=False)
    os.close(null)
    _sockets.clear()


def _number_of(holder: Any) -> int:
    """Return the file descriptor, or -1 if it is closed."""
    get_extra_info = getattr(holder, "get_extra_info", None)
    held = get_extra_info("socket") if get_extra_info else holder
    return -1 if held is None else int(held.fileno())


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
