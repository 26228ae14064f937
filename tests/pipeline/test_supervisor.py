"""What failed, as the supervisor of an ingestion understands it, and how often it tries again."""

import itertools
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from reaper.pipeline.lake.maintenance import Upkeep
from reaper.pipeline.lake.supervisor import (
    FAILURES_IN_VAIN,
    LONGEST_PAUSE_S,
    PYTHON_IS_LATE,
    STARTS_TOO_LATE,
    IngestError,
    Run,
    Supervisor,
    growing_pauses,
    is_final,
    reason_of,
)
from reaper.pipeline.lake.tables import lake_at
from reaper.pipeline.spark.failures import PYTHON_ENDED
from tests.pipeline.hurry import Hurry


@pytest.mark.parametrize(
    ("late", "reason", "attempts"),
    [
        (0, "no such table", FAILURES_IN_VAIN),
        (0, f"{PYTHON_IS_LATE}.", STARTS_TOO_LATE),
        (FAILURES_IN_VAIN, "no such table", 2 * FAILURES_IN_VAIN),
    ],
)
def test_a_run_that_should_end_gives_up_later_where_the_machine_is_only_busy(
    late: int, reason: str, attempts: int, tmp_path: Path
) -> None:
    started, layout = 0, lake_at(tmp_path)
    layout.create()

    def start() -> StreamingQuery:
        nonlocal started
        started += 1
        raise StreamingQueryException(PYTHON_IS_LATE if started <= late else reason)

    with pytest.raises(IngestError, match=f"ingestion into the lake {layout.root} stopped: {reason}"):
        Supervisor(start, layout, Run(available_now=True, stop=Hurry()), Upkeep(layout, 1, None)).run()
    assert started == attempts


def test_what_cannot_be_read_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    """This covers Spark's messages, and those of the lake's calls beside it."""
    layout = lake_at(tmp_path)
    failures: list[Exception] = [OSError(5, "Input/output error"), DeltaError("Generic S3 error: connection refused")]

    def start() -> StreamingQuery:
        if failures:
            raise failures.pop()
        stop.set()
        raise StreamingQueryException("over")

    stop = Hurry()
    done = Supervisor(start, layout, Run(stop=stop), Upkeep(layout, 1, None)).run()
    assert done.restarts == 2


def test_the_sentence_is_found_among_what_spark_says_around_it() -> None:
    loss = "Traceback:\n  File x\nour.DataLossError: stream s: 3 entries were trimmed.\n\n== plan"
    assert reason_of(StreamingQueryException(loss)) == "stream s: 3 entries were trimmed."
    other = "[X] failed\nOSError: first\nduring that\npyarrow.lib.ArrowInvalid: no\nOSError: No space left\n at java"
    assert reason_of(StreamingQueryException(other)) == "OSError: No space left"
    assert reason_of(ValueError("one\ntwo")) == "one"
    java = "An error occurred while calling o1.load.\n: java.io.IOException: Stream closed\n\tat java.base/java.io"
    assert reason_of(Py4JError(java)) == "IOException: Stream closed"
    assert reason_of(Py4JError("Py4JJavaError: " + java.replace("\n", "\\n"))) == "IOException: Stream closed"
    for gone in (
        "[STREAM_FAILED] Query terminated (no cause message)\n\tat PythonStreamingSourceRunner\njava.io.EOFException",
        "Connection reset\n\tat PythonStreamingSourceRunner\njava.net.SocketException: Connection reset",
        "Py4JJavaError: calling o1\nSparkException: Python worker exited unexpectedly (crashed)",
        "Traceback:\n  File x\nMemoryError\n\n\tat java",
        "Traceback:\n  File x\npyarrow.lib.ArrowMemoryError: malloc of size 5 failed",
    ):
        assert reason_of(StreamingQueryException(gone)) == PYTHON_ENDED
    assert reason_of(StreamingQueryException("KeyError: x\n\tat PythonStreamingSourceRunner")) == "KeyError: x"


def test_a_full_disk_is_told_as_such_though_spark_says_so_only_in_the_cause() -> None:
    failed = StreamingQueryException("[STREAM_FAILED] [TASK_WRITE_FAILED] Task failed while writing rows.")
    cause = PySparkException("[TASK_WRITE_FAILED] Task failed")
    failed._cause = cause  # type: ignore[attr-defined]
    cause._stackTrace = "FSError: …\nCaused by: java.io.IOException: No space left on device\n\tat java"  # type: ignore[attr-defined]
    assert reason_of(failed).startswith("no space left on device: the disk of the lake")
    cause.__context__ = failed
    assert reason_of(cause).startswith("no space left on device")
    assert not is_final(failed)


def test_only_what_may_pass_is_tried_again() -> None:
    assert is_final(StreamingQueryException("x.DataLossError: gone"))
    assert is_final(StreamingQueryException("RedisStreamError: option"))
    assert is_final(StreamingQueryException("ReplacedError: another ingester"))
    assert not is_final(StreamingQueryException("redis_stream.UnreachableError: no contact"))


def test_pauses_grow_up_to_a_minute() -> None:
    pauses = list(itertools.islice(growing_pauses(), 8))
    assert pauses[:3] == [1, 2, 4]
    assert pauses[-1] == LONGEST_PAUSE_S == 60
