"""What Spark says of a failure outside its message."""

import re

NO_SPACE = "No space left on device"
"""How systems, and Java, say it."""
PYTHON_ENDED = "a Python process of Spark's ended in the middle of its work: it was killed, or had no memory left"
_TASK_ENDED = re.compile(r"Python worker exited unexpectedly|^(?:pyarrow\.lib\.Arrow)?MemoryError\b", re.MULTILINE)
_CUT_OFF = re.compile(r"java\.(?:io\.EOFException|net\.SocketException|io\.IOException)")
_PLANNER = "PythonStreamingSourceRunner"


def all_words(error: BaseException) -> str:
    """Return all that is said of a failure: its message, its causes' and, where Spark hands them on, Java's stacks.

    A task that cannot write says "task failed while writing rows", and why only in what caused it.
    """
    said: list[str] = []
    known: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in known:
            continue
        known.add(id(one))
        said += [str(one), *(str(getattr(one, name, "")) for name in ("_stackTrace", "_stacktrace"))]
        causes = (one.__cause__, one.__context__, getattr(one, "_cause", None))
        waiting += [cause for cause in causes if isinstance(cause, BaseException)]
    return "\n".join(said)


def python_has_ended(words: str) -> bool:
    """Tell whether `all_words` say that a process is gone which carried out a task, or planned a query's batches."""
    return bool(_TASK_ENDED.search(words) or (_PLANNER in words and _CUT_OFF.search(words)))
