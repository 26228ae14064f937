"""If Spark fails for a cause outside of a question, one sentence names it. Our own faults stay tracebacks."""

import errno
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reaper.pipeline.command import sentences
from reaper.pipeline.lake.supervisor import is_final
from reaper.pipeline.spark.failures import JAVA_ENDED, PYTHON_ENDED, reason_from_outside
from workers.runtime.options import USAGE_EXIT

JOB = "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Job aborted: "
READ = (
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///lake/1.parquet.  SQLSTATE: KD001\n\tat x"
)


DISK = "no space left on device: the disk of the lake or the checkpoint is full, or that of temporary files"
HEAP = "Spark has no memory left: give it more (--spark-memory), or ask for less"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Py4JError(f"{JOB}\nCaused by: java.lang.Error: Cannot unpack libzstd: No space left on device"), DISK),
        (Py4JError(f"{JOB}java.lang.OutOfMemoryError: Java heap space"), HEAP),
        (Py4JError(f"{JOB}Python worker exited unexpectedly (crashed)"), PYTHON_ENDED),
        (Py4JError("Answer from Java side is empty"), JAVA_ENDED),
        (Py4JNetworkError("An error occurred while sending command"), JAVA_ENDED),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), JAVA_ENDED),
        (
            PySparkException(READ),
            "the lake cannot be read: Encountered error while reading file file:///lake/1.parquet",
        ),
        (Py4JError(f"{JOB}java.lang.NullPointerException"), ""),
        (PySparkException("[UNRESOLVED_COLUMN] A column cannot be resolved"), ""),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
        (ValueError("No space left on device"), ""),
    ],
)
def test_what_lies_outside_of_the_question_is_told(error: Exception, reason: str) -> None:
    assert reason_from_outside(error) == reason


@pytest.mark.parametrize(
    ("words", "whose"),
    [
        ("[PYTHON_DATA_SOURCE_ERROR] Failed to create", "the driver"),
        ("Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.5 executor 1): PythonException", "executor 1 on 10.0.0.5"),
        ("Lost task 0.0 in stage 0.0 (TID 3) (host executor driver): PythonException", "the driver"),
    ],
)
def test_a_package_that_a_python_of_spark_lacks_is_told_with_its_place_and_not_tried_again(
    words: str, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./env/bin/python")
    error = PySparkException(f"{words}: Traceback\nModuleNotFoundError: No module named 'pyarrow.parquet'")
    assert reason_from_outside(error).startswith(
        f"the Python of Spark for {whose} (PYSPARK_PYTHON, here './env/bin/python') has no pyarrow: install "
    )
    assert is_final(error)
    assert not is_final(PySparkException("No module named 'of_mine'"))


def test_a_file_that_is_gone_under_a_command_is_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    lake = str(tmp_path / "rows")
    spark.range(3).write.parquet(lake)
    rows = spark.read.parquet(lake)
    for file in Path(lake).glob("*.parquet"):
        file.write_bytes(b"junk")

    @click.command()
    def ask() -> None:
        with sentences():
            rows.collect()

    answer = CliRunner().invoke(ask)
    assert (answer.exit_code, answer.stdout) == (USAGE_EXIT, "")
    assert answer.stderr.startswith("error: the lake cannot be read: Encountered error while reading file file:/")
    assert answer.stderr.count("\n") == 1
