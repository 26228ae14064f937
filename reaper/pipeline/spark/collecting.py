"""Brings the few rows of an answer into this process, also where the machine is so busy that a connection fails.

Java hands rows over through a socket of its own for each answer, and gives up on whoever does not come in time. What
was counted is not lost by that: asking once more is enough.
"""

import time
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame

ATTEMPTS = 5
PAUSE_S = 0.5
"""Before the second attempt; twice as long before each further one."""


def collect_rows(question: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of ``question`` as plain dictionaries. Raises what Spark raises, and the last lost connection."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return _rows(question)
        except (OSError, EOFError, PySparkRuntimeError, Py4JNetworkError) as error:
            if not is_about_a_socket(error):
                raise
            time.sleep(PAUSE_S * 2**attempt)
    return _rows(question)


def _rows(question: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in question.collect()]


def is_about_a_socket(error: Exception) -> bool:
    """Tell whether ``error`` says that rows could not be handed over, and nothing about the question."""
    if isinstance(error, PySparkRuntimeError):
        return error.getCondition() == "CANNOT_OPEN_SOCKET"
    return isinstance(error, OSError | EOFError | Py4JNetworkError)
