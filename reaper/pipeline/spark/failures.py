"""What Spark says of a failure outside its message."""

import re

NO_SPACE = "No space left on device"
"""How systems, and Java, say it."""
DISK_FULL = "no space left on device: the disk of the lake or the checkpoint is full, or that of temporary files"
HEAP_FULL = "Spark has no memory left: give it more (--heap), or ask for less"
JAVA_ENDED = "Spark has ended in the middle of its work: it was killed, or had no memory left"
PYTHON_ENDED = "a Python process of Spark's ended in the middle of its work: it was killed, or had no memory left"
_TASK_ENDED = re.compile(r"Python worker exited unexpectedly|^(?:pyarrow\.lib\.Arrow)?MemoryError\b", re.MULTILINE)
_CUT_OFF = re.compile(r"java\.(?:io\.EOFException|net\.SocketException|io\.IOException)")
_HEAP = "java.lang.OutOfMemoryError"
_FILE = re.compile(r"\[(?:FAILED_READ_FILE|PATH_NOT_FOUND)[.\w]*\] (.+?)\.?(?:\s+SQLSTATE: \w+)?$", re.MULTILINE)
"""What Spark says of a file that is gone, or is none of a lake."""
_OF_SPARK = frozenset({"PySparkException", "Py4JError"})
"""Classes, by name: whoever asks need not have imported what raises them."""
_NO_ANSWER = ("Py4JNetworkError", "Answer from Java side is empty")
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


def reason_from_outside(error: BaseException) -> str:
    """Return why Spark failed where that lies in the machine or in a file, and not in what it was asked; else nothing.

    Of an error that is not Spark's, too, there is nothing to return.
    """
    if isinstance(error, ConnectionError) and not isinstance(error, BrokenPipeError):  # that would be standard output
        return JAVA_ENDED
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if not kinds & _OF_SPARK:
        return ""
    words = all_words(error)
    if NO_SPACE in words:
        return DISK_FULL
    if _HEAP in words:
        return HEAP_FULL
    if python_has_ended(words):
        return PYTHON_ENDED
    if any(sign in kinds or sign in words for sign in _NO_ANSWER):
        return JAVA_ENDED
    file = _FILE.search(words)
    return f"the lake cannot be read: {file[1]}" if file else ""
