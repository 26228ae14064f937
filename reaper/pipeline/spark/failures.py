"""What Spark says of a failure outside its message."""

NO_SPACE = "No space left on device"
"""How systems, and Java, say it."""


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
