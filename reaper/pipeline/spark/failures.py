"""Finds the reason of a failure of Spark, if the query is not at fault."""

import os
import re

_DISK_FULL = "no space left on device: the disk of the lake or the checkpoint is full, or that of temporary files"
_HEAP_FULL = "Spark has no memory left: give it more (--spark-memory), or ask for less"
JAVA_ENDED = "Spark ended in the middle of its work: it was killed, or had no memory left"
PYTHON_ENDED = "a Python process of Spark ended in the middle of its work: it was killed, or had no memory left"
_SIGNS = (
    ("No space left on device", _DISK_FULL),
    ("java.lang.OutOfMemoryError", _HEAP_FULL),
    (r"Python worker exited unexpectedly|(?m:^(?:pyarrow\.lib\.Arrow)?MemoryError\b)", PYTHON_ENDED),
    (r"(?s)(?=.*PythonStreamingSourceRunner).*java\.(?:io\.EOFE|net\.SocketE|io\.IOE)xception", PYTHON_ENDED),
    ("Answer from Java side is empty", JAVA_ENDED),
)
"""Patterns in messages of Spark or Java, with the reason. The first match counts."""
_PACKAGE = re.compile(r"No module named '(pyarrow|redis|deltalake|pyspark)\b")
_EXECUTOR = re.compile(r"\(TID \d+\) \((\S+) executor (\d+)\)")
_FILE = re.compile(r"\[(?:FAILED_READ_FILE|PATH_NOT_FOUND)[.\w]*\] (.+?)\.?(?:\s+SQLSTATE: \w+)?$", re.MULTILINE)
_OF_SPARK = frozenset({"PySparkException", "Py4JError"})
"""Names of error classes, so that they need not be imported."""


def all_words(error: BaseException) -> str:
    """Return the messages of an error and its causes and, where Spark hands them on, Java's stacks.

    A task that cannot write says "task failed while writing rows". Only its cause has the reason.
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


def missing_package(words: str) -> str:
    """Return a sentence about the package that a Python of Spark lacks, from `all_words`. Empty if none is missing."""
    found, executor = _PACKAGE.search(words), _EXECUTOR.search(words)
    if not found:
        return ""
    whose = f"executor {executor[2]} on {executor[1]}" if executor else "the driver"
    python = os.environ.get("PYSPARK_PYTHON", "python3")
    return (
        f"the Python of Spark for {whose} (PYSPARK_PYTHON, here {python!r}) has no {found[1]}: install pyspark, "
        "pyarrow, redis[hiredis] and deltalake there, or set PYSPARK_PYTHON to a Python that has them"
    )


def reason_from_outside(error: BaseException) -> str:
    """Return the reason if a machine or a file made Spark fail. Empty if it was the query."""
    if isinstance(error, ConnectionError) and not isinstance(error, BrokenPipeError):  # that would be standard output
        return JAVA_ENDED
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if not kinds & _OF_SPARK:
        return ""
    words = all_words(error)
    for sign, reason in _SIGNS:
        if re.search(sign, words):
            return reason
    if "Py4JNetworkError" in kinds:
        return JAVA_ENDED
    if package := missing_package(words):
        return package
    file = _FILE.search(words)
    return f"the lake cannot be read: {file[1]}" if file else ""
