"""What the system lets a process have, and a sentence where that is not enough to begin with."""

import errno
from collections.abc import Iterator
from importlib import import_module


def limit_met(error: BaseException) -> str:
    """Return which limit of the system ``error``, or what has led to it, tells of, and what to do; '' for none."""
    return next(filter(None, map(_limit_in, _with_what_led_to(error))), "")


def _with_what_led_to(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _limit_in(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        return f"this process may not open more files{_files()}: raise that (`ulimit -n`, LimitNOFILE=)."
    if number == errno.ENFILE:
        return "this machine lets nobody open more files: raise fs.file-max, or end what has so many open."
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        return "this process gets no more memory: raise its limit (`ulimit -v`, MemoryMax=)."
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return (
            "this process may not start another thread: raise its limits (`ulimit -u`, TasksMax=, the container's "
            "pids; `ulimit -v`, as each needs memory)."
        )
    return ""


def _files() -> str:
    try:
        resource = import_module("resource")
    except ImportError:  # Windows
        return ""
    return f" ({resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"
