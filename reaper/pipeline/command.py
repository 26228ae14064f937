"""Common parts of the pipeline's commands, which are their options, a session, and the output of results and errors."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from reaper.pipeline.progress import ProgressLine
from reaper.pipeline.settings import PipelineSettings
from reaper.pipeline.spark.failures import reason_from_outside
from reaper.pipeline.storage import LakeError, is_of_store
from workers.protocol.errors import ConfigurationError
from workers.runtime.options import INTERRUPTED_EXIT, errors_as_sentences, format_option, settings_options
from workers.runtime.printing import show, show_json
from workers.runtime.settings import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkFailedError(ConfigurationError):
    """Spark failed for a reason outside of the question. The message has the reason."""


Handler = Callable[[int, object], None]
"""Of a signal."""
LAKE = ("lake",)
SPARK = ("spark_master", "spark_remote", "spark_memory")
"""Settings that most commands have flags for."""
_LAKE_IN_USE = ContextVar("_LAKE_IN_USE", default="")


def pipeline_options(*names: str) -> Callable[[Any], Any]:
    """Add ``--config``, ``-o`` and one flag for each of the settings ``names``."""

    def decorate(command: Any) -> Any:
        others = [name for name in PipelineSettings.model_fields if name not in names]
        machine = format_option("Print text, or JSON without progress.")
        return settings_options(PipelineSettings, exclude=others)(machine(command))

    return decorate


def settings_of(flags: Mapping[str, Any], file: Path | None) -> PipelineSettings:
    """Return a command's settings. Errors of its lake name it from now on. Raises ConfigurationError."""
    settings = load_settings(PipelineSettings, flags=flags, file=file)
    _LAKE_IN_USE.set(settings.lake)
    return settings


@contextmanager
def sentences() -> Iterator[None]:
    """Print our errors, and those of Spark and of the lake, as sentences, and exit with 2. Print results outside."""
    _LAKE_IN_USE.set("")
    with _as_before(signal.SIGINT, signal.SIGTERM), errors_as_sentences():
        missing = [name for name in ("pyspark", "pyarrow", "deltalake") if find_spec(name) is None]
        if missing:
            raise ConfigurationError(
                f"the pipeline needs {' and '.join(missing)}. Run pip install '.[spark]' in your clone, or "
                "'.[spark,jre]' if there is no Java."
            )
        try:
            yield
        except Exception as error:
            if reason := reason_from_outside(error):
                raise SparkFailedError(f"{reason}.") from error
            if is_of_store(error):
                raise LakeError.of(_LAKE_IN_USE.get(), error) from error
            raise


def need_matplotlib() -> None:
    """Raise ConfigurationError if charts cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            "charts need matplotlib, which is not installed. Run pip install '.[report]' in your clone."
        )


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Have SIGTERM and SIGHUP do the same as Ctrl-C during the block, unless they are ignored."""
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with _as_before(*ends):
        for number in ends if _is_main() else ():
            signal.signal(number, _interrupt)
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    interrupted = signal.getsignal(signal.SIGINT)
    if not callable(interrupted):  # a shell has a process in the background ignore SIGINT
        raise KeyboardInterrupt
    interrupted(number, frame)


@contextmanager
def _as_before(*signals: signal.Signals) -> Iterator[None]:
    """Restore the handlers of signals at the end."""
    handlers = [(number, signal.getsignal(number)) for number in signals] if _is_main() else []
    try:
        yield
    finally:
        for number, handler in handlers:
            if handler is not None:
                signal.signal(number, handler)


def open_session(
    settings: PipelineSettings, line: ProgressLine, interrupted: Handler | None = None, java_options: str = ""
) -> "SparkSession":
    """Start or reach Spark according to the settings (see `interruptible`)."""
    from reaper.pipeline.spark.session import build_session

    line.show("starting Spark …")
    master, remote = settings.spark_master or None, settings.spark_remote or None
    return interruptible(
        lambda: build_session(master, remote, heap=settings.spark_memory, java_options=java_options),
        interrupted or leave_at_once,
    )


def interruptible(build: "Callable[[], SparkSession]", interrupted: Handler) -> "SparkSession":
    """Build a session, and have Ctrl-C call ``interrupted`` from now on.

    It is built in another thread. In the main thread, PySpark would install a handler of its own, and Ctrl-C while Java
    starts would leave Java behind for good.
    """
    if not _is_main():
        return build()
    signal.signal(signal.SIGINT, interrupted)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(build).result()


def leave_at_once(_number: int, _frame: object) -> None:
    """End the process. Java ends with it, and the lake is in order, as after any crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED_EXIT)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def show_result(result: Any, lines: Sequence[str], *, machine: bool) -> None:
    """Print a result as lines for people, or as one JSON document."""
    if machine:
        show_json(_plain(result))
    else:
        show(*lines)


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [_plain(item) for item in result]
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
